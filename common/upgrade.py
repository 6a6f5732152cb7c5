"""Upgrade of a namespace: correct its counters once no instance of an older version moves messages any more."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from structlog.typing import FilteringBoundLogger

from common.registry import Registry
from common.settings.base import ServiceSettings
from penstock.accounting.upgrade import Starts
from penstock.encoding import decoded_fields
from penstock.errors import TooMany
from penstock.inspect.pending import NamespacePending, read_pending
from penstock.keys import Keys
from penstock.script import Script

MAX_LISTS: Final = 4_000
"""Lists that one script corrects."""
_agree: Final = Script.read(Path(__file__).parent / "lua" / "agree.lua")


async def agree(
    redis: "Redis", keys: Keys, registry: Registry, settings: ServiceSettings, log: FilteringBoundLogger
) -> None:
    """Correct the counters if an older instance was started since they last agreed; else do nothing.

    Repeat this while an older instance is alive: it moves messages without counting what it takes.
    """
    if not settings.pending_lists:
        return
    fields: Any = await redis.hgetall(keys.metric("start"))
    starts = Starts.parse(decoded_fields(fields))
    if starts.agree:
        return
    with suppress(TooMany):  # adopt from dead instances first
        found, _ = await read_pending(redis, [keys])
        await _agree_on(redis, keys, registry, settings, log, found[keys.namespace])


async def _agree_on(
    redis: "Redis",
    keys: Keys,
    registry: Registry,
    settings: ServiceSettings,
    log: FilteringBoundLogger,
    found: NamespacePending,
) -> None:
    pending, starts = found.all, found.starts
    counting, older = await registry.by_version({each.owner for each in pending if each.owner} | registry.alive)
    lists = [each for each in pending if each.counted > each.messages and each.owner not in counting][:MAX_LISTS]
    ours = [each.name for each in lists if each.base in settings.taken_lists]
    others = [each.name for each in lists if each.base not in settings.taken_lists]
    gone = await _agree(
        redis,
        holds=keys.held,
        missing=keys.metric("missing"),
        taken=keys.metric("taken"),
        settled=keys.metric("settled") if "settled" in settings.metrics() else None,
        start=keys.metric("start"),
        lists=[*ours, *others],
        totals=len(ours),
        older="" if older else starts.older,
    )
    if not older:
        log.info("counters agree after an older version", adopted_by_it=gone)
