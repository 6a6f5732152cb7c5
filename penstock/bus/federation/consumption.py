"""Consume a queue of another site: messages come ahead, as many as the other end may send."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError, WrongCall
from penstock.bus.federation.failures import Lost
from penstock.bus.handing import Handing
from penstock.bus.message import Message
from penstock.bus.mode import Mode, to_busmq

if TYPE_CHECKING:
    from penstock.bus.federation.queue import FederatedQueue

CREDIT: Final = 200
"""After how many messages the other end may send as many more."""
ROUND: Final = 1_000
"""Maximum number of messages that Node's server sends at a time; then it stops, and is asked for more."""
PLACES: Final = frozenset({"limit", "after_id", "start"})
"""Options that depend on what was handed out already."""


class FederatedConsumption(Handing):
    """What ``FederatedQueue.consume`` returns: see ``Consumption``.

    A gateway of Penstock sends no more than it may. Node's server sends all that it has, so it is asked for some
    messages, and for more once they were handed out; in reliable mode once they were acknowledged.
    """

    queue: "FederatedQueue"

    def __init__(self, queue: "FederatedQueue", mode: Mode) -> None:
        super().__init__()
        self.queue, self.mode, self.reliable, self.exclusive = queue, mode, mode.reliable, mode.exclusive
        self.runs = False
        self._taken: deque[Message] = deque()
        self._handed = self._unreported = 0
        """Messages that were handed out, and those of them that the other end does not know of."""
        self._last_id = mode.after_id
        self._skipped = 0
        """Messages up to ``after_id`` that Node's server has sent: it reads from a place only."""
        self._more = asyncio.Event()
        self._ended = self._asked = False
        self._error: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[Message]:
        if self._iterates:
            raise WrongCall("the queue is consumed by another loop: take another `bus.queue(...)` for this one")
        try:
            while await self.fetch():
                while message := self.next_taken():
                    if self._unreported >= CREDIT:
                        self._report()
                    yield message
        finally:
            await self.stop()

    def next_taken(self) -> Message | None:
        """Return the next message that has come already, if any. Any thread may call it."""
        try:
            message = self._taken.popleft()
        except IndexError:
            return None
        self._handed += 1
        self._unreported += 1
        self._last_id = message.id
        self.queue.consumed += 1
        return message

    def take_back(self, message: Message) -> None:
        """Hand out ``message`` again as the next one, or give it back at the end."""
        self._taken.appendleft(message)
        self._handed -= 1
        self._unreported -= 1
        self.queue.consumed -= 1

    async def fetch(self) -> bool:
        """Begin if it has not; wait for a message. Return False once there shall be no more."""
        if not self._iterates:
            self._iterates = True
            await self._begin()
        self._report()
        while not self._taken and not self._ended and self._left != 0:
            self._more.clear()
            self._ask()
            await self._more.wait()
        if self._error:
            raise self._error
        return bool(self._taken) and not self._ended

    async def stop(self) -> None:
        """End it: what came and was not handed out goes back."""
        if self not in self.queue.consumptions:
            return
        was_running, self._asked = self.runs and self._asked, False
        self.ended(None)
        if was_running:
            await self.queue.end_consuming(self._unreported, reads=not self.mode.remove)

    def ended(self, error: Exception | None) -> None:
        """End it here: the other end has, or will not hear of it."""
        self._ended, self._error = True, self._error or error
        self._taken.clear()
        self._more.set()
        if self in self.queue.consumptions:
            self.queue.consumptions.remove(self)
        if self.runs:
            self.runs = False
            self.queue.emit("consuming", False)

    def received(self, pairs: list[Any]) -> None:
        """Take messages that have come: text and id of each."""
        for text, id_ in pairs:
            if self._skips and id_ <= self.mode.after_id:
                self._skipped += 1
            elif self.mode.remove or self._left is None or len(self._taken) < self._left:
                self._taken.append(Message(encoded(text), id_, self.queue))
        self._more.set()

    def note_consuming(self, consuming: bool) -> None:
        """Note that the other end has begun, or has stopped, e.g. since it has sent what was asked for."""
        if not consuming and self._asked:
            self._asked = False
            self._more.set()

    def note_error(self, error: PenstockError) -> None:
        """Raise ``error`` in the loop if it is why the other end has stopped."""
        if self.runs and not self._asked:
            self._error = error

    def note_acknowledged(self) -> None:
        """Ask for more of what is only sent once all before it was acknowledged."""
        self._more.set()

    def restart(self) -> None:
        """Forget what came and was not handed out, since the websocket was lost: it comes again."""
        self._taken.clear()
        self._unreported = 0
        self._asked = False

    async def replay(self) -> None:
        """Consume again after a reconnect."""
        if self.runs and not self._ended and not self._asked:
            await self._consume()
            self._error = None  # of the outage that is over

    async def _begin(self) -> None:
        try:
            while True:
                try:
                    await self._consume()
                    break
                except Lost:
                    continue
        except PenstockError:
            self.ended(None)
            raise
        self.runs = True
        self.queue.emit("consuming", True)
        self._note_started()

    async def _consume(self) -> None:
        await self.queue.wait_attached()
        mode, left = self.mode, self._left
        options: dict[str, Any] = {name: value for name, value in asdict(mode).items() if name not in PLACES}
        if self.reliable:
            options["after_id"] = self.queue.acknowledged
        elif not mode.remove:
            options |= {"after_id": self._last_id, "start": mode.start + self._skipped + self._handed}
        if left is not None:
            options["limit"] = left
        if not self.queue.has_more:
            options["limit"] = ROUND if left is None or self._skips else min(left, ROUND)
        self._asked = True
        try:
            await self.queue.begin_consuming(to_busmq(options))
        except BaseException:
            self._asked = False
            raise

    @property
    def _left(self) -> int | None:
        """Return how many messages may be handed out yet; None without limit."""
        return None if self.mode.limit is None else max(0, self.mode.limit - self._handed)

    @property
    def _skips(self) -> bool:
        """Return whether messages up to ``after_id`` may come, which are not to be handed out."""
        return not self.mode.remove and not self._handed and not self.queue.has_more

    def _ask(self) -> None:
        """Have Node's server send more, if all that it has sent was handed out, and acknowledged if it is reliable."""
        if self._asked or not self.runs or not self.queue.is_attached or not self.queue.is_ready:
            return
        if self.queue.has_more:
            self.ended(self._error)
            return
        if self.reliable and self.queue.acknowledged < self._last_id:
            return
        self._asked = True
        self.queue.bus.spawn(self._ask_again())

    async def _ask_again(self) -> None:
        try:
            await self._consume()
        except Lost:
            return
        except PenstockError as error:
            self.ended(error)

    def _report(self) -> None:
        many, self._unreported = self._unreported, 0
        self.queue.send_handled(many)
