"""Fan-out of messages to many lists, inside the server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis.exceptions import NoScriptError

from common.context import Context
from common.in_flight import counters
from common.transaction import Transaction
from penstock.script import Script
from penstock.transfer.read_size import Sizes
from services.mpush.settings import Settings

_move: Final = Script.read(Path(__file__).parent / "lua" / "move.lua")
MAX_UNDER_WAY: Final = 2
"""Most moves under way at once during a backlog."""
MAX_COPIES: Final = 20_000
"""Most copies that one move makes, whatever the batch: about 5 ms of the server's time."""
FULL_SECONDS: Final = 0.2
"""Seconds until a full list is tried again."""


@dataclass(frozen=True)
class Moved:
    """Result of one move: messages moved, messages still waiting, and the list that was full, if any."""

    messages: int
    waiting: int
    full: str | None


class Fanout:
    """Copies messages from ``in`` through this instance's pending list to every list of ``out``."""

    def __init__(self, context: Context[Settings]) -> None:
        self._context = context
        settings, keys = context.settings, context.keys
        self._source, self._pending = settings.in_, context.pending(settings.pending)
        self._sizes = Sizes()
        self._full: str | None = None
        self._known = False
        self._packed_for: tuple[bool, int, int] | None = None
        self._named: dict[str, Any] = {
            "pending": self._pending,
            "source": self._source,
            "subscribers": settings.out,
            "batch": max(min(settings.batch, MAX_COPIES // len(settings.out)), 1),
            "bytes": settings.batch_bytes // len(settings.out),
            "limit": settings.max_length or 0,
            "overflow": settings.overflow,
            "token": context.token or 0,
        }
        if keys:
            self._named |= counters(keys) | {name: keys.metric(name) for name in ("settled", "delivered")}
            if settings.max_length and settings.overflow != "block":
                self._named["lost"] = keys.metric("dead" if settings.overflow == "dead" else "dropped")
                self._named["letters"] = keys.dead if settings.overflow == "dead" else None
            self._named["lease"] = keys.lease if settings.ordered else None

    async def take(self) -> bool:
        """Wait for a message, at most ``popTimeout``, and deliver it; return whether more may wait.

        The server delivers as soon as the wait is over, without another round trip.
        """
        context = self._context
        await context.take(self._source, self._pending, context.settings.pop_timeout, then=self._move())
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
            wanted = 0 if not moved.waiting or not self._context.running else 1 if moved.full else MAX_UNDER_WAY
            if moved.full and wanted:
                await self._context.pause(FULL_SECONDS)

    def _move(self) -> Transaction:
        """Return a transaction of the script alone, by digest if the server has it: so NOSCRIPT undoes all of it."""
        wanted = self._known, self._sizes.unseen, self._sizes.largest
        if wanted != self._packed_for:
            command = (_move.by_digest if self._known else _move.by_source)(**self._sizes.named, **self._named)
            self._packed, self._packed_for = self._context.transaction(command), wanted
        return self._packed

    async def _moved(self) -> Moved:
        try:
            ((messages, waiting, largest, full),) = await self._context.settled()
        except NoScriptError:
            self._known = False
            return Moved(messages=0, waiting=1, full=None)
        self._known = True
        self._sizes.note(messages, largest)
        moved = Moved(messages, waiting, full.decode() if full else None)
        self._note_full(moved)
        return moved

    def _note_full(self, moved: Moved) -> None:
        """Log once when a list fills up, and once when messages move again."""
        if moved.full != self._full:
            if moved.full:
                self._context.log.warning("waiting for a subscriber", full=moved.full, waiting=moved.waiting)
            else:
                self._context.log.info("subscribers have room again")
        self._full = moved.full
