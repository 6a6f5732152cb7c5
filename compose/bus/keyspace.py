"""Keys of the bus composition."""

import re
from typing import Final

from redis.asyncio import Redis

from compose.bus.names import ARRIVED, DAILY, HANDLED, LAST, PAUSES, READINGS, SOURCE, TAKEN
from compose.keyspace import Keyspace
from penstock.keys import Keys

KEYS: Final = Keys("temps:gateway")
OF_BUS: Final = [f"bus:{each}temps:*" for each in ("queue:", "queue:channel:*:", "queue:service:", "persisted:")]
"""Patterns of the keys that the bus makes."""
_SINGLE: Final = (SOURCE, TAKEN, HANDLED, LAST, PAUSES, ARRIVED)

KEYSPACE: Final = Keyspace(
    "temps",
    namespaces=(KEYS.namespace,),
    pattern=re.compile("|".join([*map(re.escape, _SINGLE), "temps:gateway:.*"]), re.DOTALL),
    in_flight=re.compile("temps:in|temps:in:taken"),
)


async def in_queues(redis: "Redis") -> int:
    """Return how many messages wait in the queues, or are not acknowledged."""
    names = [f"bus:queue:{name}:{kind}" for name in (READINGS, DAILY) for kind in ("messages", "toack")]
    return sum([await redis.llen(name) for name in names]) // 2


async def clear_bus(redis: "Redis") -> None:
    """Delete what a demo before has left in the bus."""
    for pattern in OF_BUS:
        async for key in redis.scan_iter(pattern, count=1_000):
            await redis.unlink(key)
