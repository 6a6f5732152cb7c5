"""The keys of the weather composition: which there are, and whose data they hold."""

import re
from typing import Final

from redis.asyncio import Redis

from compose.weather.consumer import HANDLED
from penstock.errors import PenstockError
from penstock.keys import Keys

KEYS: Final = Keys("weather")
SOURCE: Final = "weather:in"
PENDING: Final = "weather:pending"
STORMS: Final = "weather:storms"
REPORTS: Final = "weather:reports"
MARKER: Final = "weather:demo"
"""Says that what lies beside it was put there by the demo."""
LEGS: Final = {f"weather:{role}": handled for role, handled in HANDLED.items()}
"""Each list that mpush fills, and where its consumer keeps what it has settled."""

_SINGLE: Final = {
    *(SOURCE, PENDING, STORMS, REPORTS, MARKER, *LEGS, *LEGS.values()),
    *(KEYS.counter, KEYS.ids, KEYS.owners, KEYS.lists, KEYS.lease, KEYS.events, KEYS.done, KEYS.dead),
}
_MANY: Final = re.compile(r"weather:(\d+|pending:\d+|metrics:\w+|(archive|alarm|report):(working:.+|dead))", re.DOTALL)


async def present(redis: "Redis") -> list[str]:
    """The composition's own keys that hold something, sorted; other keys that begin with ``weather:`` are not its."""
    found = [key.decode(errors="surrogateescape") async for key in redis.scan_iter("weather:*", count=1000)]
    return sorted({key for key in found if key in _SINGLE or _MANY.fullmatch(key)})


async def prepare(redis: "Redis") -> None:
    """Leave nothing but the marker. Raises ``PenstockError`` and deletes nothing where the data is somebody else's."""
    keys = await present(redis)
    if keys and MARKER not in keys:
        raise PenstockError(f"the server holds weather data that no demo put there: {', '.join(keys[:5])}")
    live = [key for key in keys if re.fullmatch(r"weather:\d+", key)]
    if live:
        raise PenstockError(f"the composition is running (or was killed under a minute ago): {', '.join(live)}")
    if keys:
        await redis.delete(*(key.encode(errors="surrogateescape") for key in keys))
    await redis.set(MARKER, "what lies beside this key was put here by the demo, which deletes it when it starts again")


async def left(redis: "Redis") -> dict[str, int]:
    """Lists on the way through that are not empty, with their lengths: none when all is through."""
    way = re.compile(r"weather:(in|pending|pending:.+|archive|alarm|report|dead|.+:working:.+|.+:dead)", re.DOTALL)
    lengths = {key: await redis.llen(key) for key in await present(redis) if way.fullmatch(key)}
    return {key: length for key, length in lengths.items() if length}
