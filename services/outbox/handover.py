"""Messages that have come, and wait until a program at the socket has taken and finished them."""

import asyncio
import heapq
from itertools import count

from penstock.base.errors import PenstockError
from penstock.outbox import Message


class NotHandled(PenstockError):
    """What a program says of a message that it could not handle."""


class Waiting:
    """A message, and whether a program has finished it."""

    def __init__(self, number: int, message: Message) -> None:
        self.number, self.message = number, message
        self.finished = asyncio.get_running_loop().create_future()

    def __lt__(self, other: "Waiting") -> bool:
        return self.number < other.number

    def finish(self, problem: str | None = None) -> None:
        """Have the message removed; or, if there is a ``problem``, tried again later."""
        if self.finished.done():
            return
        if problem is None:
            self.finished.set_result(None)
        else:
            self.finished.set_exception(NotHandled(problem))


class Handover:
    """The oldest message goes to the program that asks first; what a program leaves when it goes, to the next one."""

    def __init__(self) -> None:
        self._free = list[Waiting]()
        self._numbers = count()
        self._news = asyncio.Event()

    async def take(self, message: Message) -> None:
        """Return once a program has finished ``message``. Raise ``NotHandled`` if it could not."""
        waiting = Waiting(next(self._numbers), message)
        self.give_back(waiting)
        await waiting.finished

    def give_back(self, waiting: Waiting) -> None:
        """Let another program have what is not finished."""
        if not waiting.finished.done():
            heapq.heappush(self._free, waiting)
            self._news.set()

    async def next(self) -> Waiting:
        """Return the oldest message that no program has, and that is still awaited."""
        while True:
            while self._free:
                found = heapq.heappop(self._free)
                if not found.finished.done():
                    return found
            self._news.clear()
            await self._news.wait()
