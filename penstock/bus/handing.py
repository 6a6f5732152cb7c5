"""Hand out the messages of a queue to its handlers, instead of a loop over them."""

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any, Final, Protocol, Self

from redis.exceptions import RedisError

from penstock.base.errors import PenstockError
from penstock.base.log import Log

_log: Final = Log("penstock.bus")


class Consumed(Protocol):
    """The queue whose messages are handed out, here or at another site."""

    name: str

    @property
    def bus(self) -> Any:
        """Return the bus that runs the task."""

    def emit(self, event: str, *values: Any) -> None:
        """Call the handlers of ``event``."""

    async def deliver(self, event: str, *values: Any) -> None:
        """Call the handlers of ``event`` one after the other."""


class Handing:
    """What consumptions inherit: await one, and the handlers of ``message`` are called."""

    queue: Consumed

    def __init__(self) -> None:
        self._iterates = False
        """Whether a loop, or the handlers, have begun to take messages."""
        self._started: asyncio.Future[None] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def start(self) -> Self:
        """Have the handlers of ``message`` called from now on."""
        if self._started is None:
            if self._iterates:
                return self
            self._started = asyncio.get_running_loop().create_future()
            self.queue.bus.spawn(self._hand_out(self._started))
        await asyncio.shield(self._started)
        return self

    def _note_started(self) -> None:
        """Note that messages are being consumed: ``start`` returns."""
        if self._started and not self._started.done():
            self._started.set_result(None)

    async def _hand_out(self, started: "asyncio.Future[None]") -> None:
        """Call the handlers of the queue with each message."""
        try:
            async for message in self:
                await self.queue.deliver("message", message)
        except (PenstockError, RedisError, OSError) as error:
            if not started.done():
                started.set_exception(error)
            else:
                _log.warning("consumption ended", queue=self.queue.name, reason=str(error))
                self.queue.emit("error", error)
        finally:
            self._note_started()
