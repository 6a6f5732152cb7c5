"""The moves of mpush: one message to many lists, inside the server."""

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
AHEAD: Final = 2
"""Moves under way at once while there is a backlog."""
COPIES: Final = 20_000
"""Most copies that one move makes, whatever the batch: about 5 ms of the server's time."""
FULL: Final = 0.2
"""Seconds until a list that was full is looked at again."""


@dataclass(frozen=True)
class Moved:
    """What one move did: messages moved, messages that still wait, and the list that was full, if one was."""

    messages: int
    waiting: int
    full: str | None


class Fanout:
    """From ``in`` through this instance's pending list to every list of ``out``."""

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
            "batch": max(min(settings.batch, COPIES // len(settings.out)), 1),
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

        The server delivers as soon as the wait is over, without a round trip between.
        """
        context = self._context
        await context.take(self._source, self._pending, context.settings.pop_timeout, then=self._move())
        moved = await self._moved()
        if context.outage.server_is_full and not moved.messages:  # a full server does not wait
            await context.pause(FULL)
        return moved.waiting > 0

    async def deliver(self) -> None:
        """Deliver what is pending and then what waits behind it, until nothing does or the run shall end.

        With a backlog several moves are under way at once, so that the server never waits for this process.
        """
        under_way, wanted = 0, 1
        while under_way or wanted:
            while under_way < wanted:
                await self._context.send(self._move())
                under_way += 1
            moved = await self._moved()
            under_way -= 1
            wanted = 0 if not moved.waiting or not self._context.running else 1 if moved.full else AHEAD
            if moved.full and wanted:
                await self._context.pause(FULL)

    def _move(self) -> Transaction:
        """By the script's digest once the server has it; alone in its transaction, so NOSCRIPT undoes all of it."""
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
        """Said once when a list fills up, and once when messages move again."""
        if moved.full != self._full:
            if moved.full:
                self._context.log.warning("waiting for a subscriber", full=moved.full, waiting=moved.waiting)
            else:
                self._context.log.info("subscribers have room again")
        self._full = moved.full
