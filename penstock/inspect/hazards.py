"""What may take messages away that no service took: a TTL on one of its lists, or a server that evicts."""

from collections.abc import Iterable
from contextlib import suppress

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.encoding import encoded
from penstock.inspect.namespace import ServiceKey, service_keys
from penstock.keys import Keys


async def hazards(redis: "Redis", keys: Keys) -> list[str]:
    """Return in words which lists of the namespace expire, or may be evicted. Lists for answers are to expire."""
    lists = await service_keys(redis, keys)
    left = await expiring_keys(redis, (one.name for one in lists))
    found = [describe_expiry(one.name, left[one.name], one) for one in lists if one.name in left]
    if lists and (why := await describe_eviction(redis)):
        named = ", ".join(repr(one.name) for one in lists)
        found.append(f"{why}: {named} may be gone; expected maxmemory-policy noeviction")
    return found


async def expiring_keys(redis: "Redis", names: Iterable[str]) -> dict[str, float]:
    """Return those of ``names`` that have a TTL, with the seconds that are left."""
    asked = list(dict.fromkeys(names))
    async with redis.pipeline(transaction=False) as wire:
        for name in asked:
            wire.pttl(encoded(name))
        replies = await wire.execute(raise_on_error=False) if asked else []
    pairs = zip(asked, replies, strict=True)
    return {name: left / 1000 for name, left in pairs if isinstance(left, int) and left >= 0}


def describe_expiry(name: str, seconds: float, held: ServiceKey | None = None) -> str:
    """Return what there is to say of a list with a TTL, and how to end it."""
    messages = (
        f" with its {held.length:,} message{'s' if held.length > 1 else ''}" if held else " with all messages in it"
    )
    return f"{name!r} has a TTL and is gone in {seconds:,.0f} s{messages}; expected none: PERSIST {name}"


async def describe_eviction(redis: "Redis") -> str | None:
    """Return how the server deletes lists when its memory is full; None if it does not, or does not let us ask.

    With ``volatile-*`` only keys with a TTL are deleted: no list that is as it should be.
    """
    with suppress(ResponseError):
        info = await redis.info("memory")
        policy, most = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory", 0))
        if policy.startswith("allkeys") and most:
            gone = int((await redis.info("stats")).get("evicted_keys", 0))
            already = f", and has deleted {gone:,} keys so far" if gone else ""
            return f"the server deletes any key once it uses {most:,} bytes (maxmemory-policy {policy}){already}"
    return None
