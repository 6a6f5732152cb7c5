"""Write and read metrics: hashes ``<ns>:metrics:<name>`` with ``count sum max histo0 ... histo100``."""

from typing import Final

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from penstock.base.encoding import decoded, decoded_fields, parse_number
from penstock.base.keys import Keys, glob_escaped
from penstock.core.atomic import AtomicRead
from penstock.core.script import LUA, Script

_observe: Final = Script.read(LUA / "observe.lua")


def observe(transaction: "Pipeline", metric: str, value: float, budget: float) -> None:
    """Count ``value`` (s), relative to ``budget`` (s, above 0), in the hash ``metric``, inside ``transaction``."""
    _observe.queue(transaction, metric=metric, value=value, budget=budget)


def count(transaction: "Pipeline", metric: str, amount: int = 1) -> None:
    """Add ``amount`` to the count of the hash ``metric``, inside ``transaction``."""
    transaction.hincrby(metric, "count", amount)


async def read_metrics(redis: "Redis", keys: Keys) -> dict[str, dict[str, str]]:
    """Return the fields of all metrics of a namespace, sorted by name; values as redis-cli shows them."""
    prefix = keys.metric("")
    found = sorted([key async for key in redis.scan_iter(f"{glob_escaped(prefix)}*", count=1000, _type="HASH")])
    async with AtomicRead(redis) as snapshot:
        for key in found:
            snapshot.hgetall(key)
        hashes = await snapshot.execute()
    return {
        decoded(key).removeprefix(prefix): decoded_fields(fields) for key, fields in zip(found, hashes, strict=True)
    }


def parse_metric(value: bytes | None) -> float | None:
    """Return a counter, sum or time; None if ``value`` is not a finite number of 0 or more."""
    return parse_number(value, least=0)
