"""The loop of a service whose messages move inside the server, by one script of its own."""

from dataclasses import dataclass
from typing import Any, Final, Generic

from redis.exceptions import NoScriptError

from common.context import Context
from common.transaction import Transaction
from common.wired import S
from penstock.core.read_size import Sizes
from penstock.core.script import Script

MAX_UNDER_WAY: Final = 2
"""Maximum number of moves under way at once during a backlog."""
FULL_SECONDS: Final = 0.2
"""Seconds until a full server is tried again."""


@dataclass(frozen=True)
class Moved:
    """Result of one move."""

    messages: int
    """How many messages were moved."""
    waiting: int
    """How many still wait."""
    pause: float = 0.0
    """Seconds after which another move can move some of them."""


class Mover(Generic[S]):
    """Moves messages from a list through this instance's pending list by a script ``WITH reading``.

    The script takes what is pending and what waits behind it, up to a bound. A subclass reads its reply in ``_read``.
    """

    def __init__(self, context: Context[S], script: Script, source: str, pending: str, named: dict[str, Any]) -> None:
        """Give the script ``named``, besides ``source``, ``pending`` and the arguments of ``reading.lua``."""
        self._context, self._script, self._source, self._pending = context, script, source, pending
        self._named = {"source": source, "pending": pending, **named}
        self._sizes = Sizes()
        self._known = False
        self._packed_for: tuple[bool, int, int] | None = None

    def _read(self, reply: Any) -> Moved:
        """Return what the script's ``reply`` says: messages moved, messages waiting, bytes of the largest one."""
        messages, waiting, largest = reply
        self._sizes.note(messages, largest)
        return Moved(messages, waiting)

    def give(self, **named: Any) -> None:
        """Give the script this, too, from the next move on."""
        self._named |= named
        self._packed_for = None

    async def run(self) -> None:
        """Deliver messages until the run ends, those that an earlier run left first."""
        await self.deliver()
        while self._context.running:
            if await self.take():
                await self.deliver()

    async def take(self) -> bool:
        """Wait for a message, at most ``popTimeout``, and deliver it; return whether more may wait.

        The server delivers as soon as the wait is over, without another round trip.
        """
        context = self._context
        await context.take(self._source, self._pending, context.settings.message_wait, then=self._move())
        moved = await self._moved()
        if context.outage.server_is_full and not moved.messages:  # a full server does not wait
            await context.pause(FULL_SECONDS)
        return moved.waiting > 0

    async def deliver(self) -> None:
        """Deliver what is pending and then what waits behind it, until nothing does or the run is to end.

        During a backlog several moves are under way at once, so that the server never waits for this process.
        """
        under_way, wanted = 0, 1
        while under_way or wanted:
            while under_way < wanted:
                await self._context.send(self._move())
                under_way += 1
            moved = await self._moved()
            under_way -= 1
            wanted = 0 if not moved.waiting or not self._context.running else 1 if moved.pause else MAX_UNDER_WAY
            if moved.pause and wanted:
                await self._context.pause(moved.pause)

    def _move(self) -> Transaction:
        """Return a transaction of the script alone, by digest if the server has it: so NOSCRIPT undoes all of it."""
        wanted = self._known, self._sizes.unseen, self._sizes.largest
        if wanted != self._packed_for:
            command = self._script.by_digest if self._known else self._script.by_source
            self._packed = self._context.transaction(command(**self._sizes.named, **self._named))
            self._packed_for = wanted
        return self._packed

    async def _moved(self) -> Moved:
        try:
            (reply,) = await self._context.settled()
        except NoScriptError:
            self._known = False
            return Moved(messages=0, waiting=1)
        self._known = True
        return self._read(reply)
