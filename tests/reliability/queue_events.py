"""What has become of the tasks of hqueue, by their events."""

from typing import Final

from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.tracking.events import TrackedEvent, read_entries

KEYS: Final = Keys("work")
ENDS: Final = ("done", "dead", "expired")


async def events_of(url: str) -> list[TrackedEvent]:
    async with Redis.from_url(url) as redis:
        return [event async for entries in read_entries(redis, KEYS) for entry in entries for event in entry.events()]
