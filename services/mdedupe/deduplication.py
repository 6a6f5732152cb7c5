"""Deduplication of messages, inside the server or by keys that this process reads."""

from pathlib import Path
from typing import Any, Final

from common.context import Context
from common.in_flight import counters
from common.mover import Mover
from penstock.core.script import Script
from services.mdedupe.keys import Reader
from services.mdedupe.settings import Settings

LUA: Final = Path(__file__).parent / "lua"
_dedupe, _dedupe_batch = (Script.read(LUA / f"{name}.lua") for name in ("dedupe", "dedupe_batch"))
METRICS: Final = ("settled", "delivered", "dropped", "duplicate", "forgotten")


def by_digest(context: Context[Settings]) -> Mover[Settings]:
    """Return what moves messages inside the server, which makes their keys itself."""
    settings, keys = context.settings, context.required_keys
    named: dict[str, Any] = {
        **passing(context),
        **counters(keys),
        "lease": keys.lease if settings.ordered else None,
        "token": context.token or 0,
        "batch": settings.batch,
        "bytes": settings.batch_bytes,
    }
    return Mover(context, _dedupe, settings.in_, context.pending(settings.pending), named)


async def by_key(context: Context[Settings], key_of: Reader) -> None:
    """Settle batch after batch by the keys that ``key_of`` returns, until the run ends."""
    settings, named = context.settings, passing(context)
    async for batch in context.batches(settings.batch, settings.batch_bytes):
        await context.settle_by(_dedupe_batch, batch, known=[*map(key_of, batch)], **named)


def passing(context: Context[Settings]) -> dict[str, Any]:
    """Return the keys and arguments of ``once.lua``."""
    settings, keys = context.settings, context.required_keys
    return {
        "remembered": keys.remembered,
        "out": settings.out,
        "duplicates": settings.duplicates,
        **{name: keys.metric(name) for name in METRICS},
        "expire": settings.expire,
        "capacity": settings.capacity,
        "origin": settings.in_,
    }
