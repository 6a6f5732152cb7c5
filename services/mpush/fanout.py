"""Fan-out of messages to many lists, inside the server."""

from pathlib import Path
from typing import Any, Final

from common.context import Context
from common.in_flight import counters
from common.mover import FULL_SECONDS, Moved, Mover
from penstock.base.encoding import decoded
from penstock.core.script import Script
from services.mpush.settings import Settings

_move: Final = Script.read(Path(__file__).parent / "lua" / "move.lua")
MAX_COPIES: Final = 20_000
"""Maximum number of copies that one move makes, whatever the batch: about 5 ms of the server's time."""


class Fanout(Mover[Settings]):
    """Copies messages from ``in`` through this instance's pending list to every list of ``out``."""

    def __init__(self, context: Context[Settings]) -> None:
        settings, keys = context.settings, context.keys
        named: dict[str, Any] = {
            "subscribers": settings.out,
            "batch": max(min(settings.batch, MAX_COPIES // len(settings.out)), 1),
            "bytes": settings.batch_bytes // len(settings.out),
            "limit": settings.max_length or 0,
            "overflow": settings.overflow,
            "token": context.token or 0,
        }
        if keys:
            named |= counters(keys) | {name: keys.metric(name) for name in ("settled", "delivered")}
            if settings.max_length and settings.overflow != "block":
                named["lost"] = keys.metric("dead" if settings.overflow == "dead" else "dropped")
                named["letters"] = keys.dead if settings.overflow == "dead" else None
            named["lease"] = keys.lease if settings.ordered else None
        super().__init__(context, _move, settings.in_, context.pending(settings.pending), named)

    def _read(self, reply: Any) -> Moved:
        *numbers, full = reply
        moved = super()._read(numbers)
        self._context.block(f"full: {decoded(full)}" if full else "", waiting=moved.waiting)
        return Moved(moved.messages, moved.waiting, FULL_SECONDS if full else 0.0)
