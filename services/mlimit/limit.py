"""The arguments of a limit, the same for every script."""

from pathlib import Path
from typing import Any, Final

from common.context import Context
from common.in_flight import counters
from common.mover import Moved, Mover
from penstock.core.script import Script
from services.mlimit.settings import Settings

LUA: Final = Path(__file__).parent / "lua"
NAP: Final = 0.01
"""Seconds that tokens may gather, if a bucket holds that many: a high rate costs 100 moves a second."""
_pass: Final = Script.read(LUA / "pass.lua")


def limit(settings: Settings) -> dict[str, Any]:
    """Return the arguments of ``bucket.lua``."""
    return {"interval": 1e6 / settings.rate, "burst": settings.burst_size}


class WholeLimit(Mover[Settings]):
    """Moves messages to ``out`` at the rate; those that have to wait stay in ``in``, in order."""

    def __init__(self, context: Context[Settings]) -> None:
        settings, keys = context.settings, context.required_keys
        named: dict[str, Any] = {
            "out": settings.out,
            "bucket": keys.bucket,
            **counters(keys),
            **{name: keys.metric(name) for name in ("settled", "delivered")},
            "lease": keys.lease if settings.ordered else None,
            "token": context.token or 0,
            "batch": settings.batch,
            "bytes": settings.batch_bytes,
            "nap": int(NAP * 1e6),
            **limit(settings),
        }
        super().__init__(context, _pass, settings.in_, context.pending(settings.pending), named)

    def _read(self, reply: Any) -> Moved:
        *numbers, pause = reply
        moved = super()._read(numbers)
        return Moved(moved.messages, moved.waiting, pause / 1e6)
