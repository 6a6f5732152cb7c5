"""Hazards: what deletes messages behind a service's back (a TTL, a server that evicts), and what stops all writes."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.base.encoding import counted, encoded
from penstock.base.keys import Keys
from penstock.inspect.namespace import ServiceKey, service_keys

DISK_STATES: Final = ("aof_last_write_status", "rdb_last_bgsave_status")
"""Fields of INFO that are ``ok`` unless the last write to the disk has failed: then a server refuses writes."""


async def hazards(redis: "Redis", keys: Keys) -> list[str]:
    """Return, in words, which lists of the namespace expire or may be evicted; lists for answers may expire."""
    lists = await service_keys(redis, keys)
    left = await expiring_keys(redis, (one.name for one in lists))
    found = [describe_expiry(one.name, left[one.name], one) for one in lists if one.name in left]
    if lists and (why := await describe_eviction(redis)):
        named = ", ".join(repr(one.name) for one in lists)
        found.append(f"{why}: {named} may be gone; expected maxmemory-policy noeviction")
    return found


async def expiring_keys(redis: "Redis", names: Iterable[str]) -> dict[str, float]:
    """Return the keys of ``names`` that have a TTL, with the seconds left."""
    asked = list(dict.fromkeys(names))
    async with redis.pipeline(transaction=False) as pipeline:
        for name in asked:
            pipeline.pttl(encoded(name))
        replies = await pipeline.execute(raise_on_error=False) if asked else []
    pairs = zip(asked, replies, strict=True)
    return {name: left / 1000 for name, left in pairs if isinstance(left, int) and left >= 0}


def describe_expiry(name: str, seconds: float, held: ServiceKey | None = None) -> str:
    """Return, in words, that list ``name`` expires in ``seconds``, and the command that prevents it."""
    messages = f" with its {counted(held.length, 'message')}" if held else " with all messages in it"
    return f"{name!r} has a TTL and is gone in {seconds:,.0f} s{messages}; expected none: PERSIST {name}"


async def describe_refusal(*servers: "Redis") -> str:
    """Return, in words, why one of ``servers`` takes no writes; empty if all do, or if we may not ask."""
    for redis in servers:
        with suppress(ResponseError):
            info: Any = await redis.info()
            if info.get("role", "master") != "master":
                primary = f"{info.get('master_host')}:{info.get('master_port')}"
                return f"the server is a replica of {primary} and takes no writes"
            if any(info.get(name, "ok") != "ok" for name in DISK_STATES):
                return "the server could not write to its disk and takes no writes"
    return ""


async def describe_eviction(redis: "Redis") -> str | None:
    """Return, in words, how a full server evicts lists; None if it does not, or if we may not ask.

    ``volatile-*`` policies evict only keys with a TTL, which our lists do not have.
    """
    with suppress(ResponseError):
        info = await redis.info("memory")
        policy, most = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory", 0))
        if policy.startswith("allkeys") and most:
            gone = int((await redis.info("stats")).get("evicted_keys", 0))
            already = f", and has deleted {counted(gone, 'key')} so far" if gone else ""
            return f"the server deletes any key once it uses {most:,} bytes (maxmemory-policy {policy}){already}"
    return None
