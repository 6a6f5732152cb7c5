"""Messages pushed at site one, with their push times and the most that waited there."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from redis.asyncio import Redis

from compose.sites.names import SOURCE, queues_for

BATCH: Final = 50
PUSH_SECONDS: Final = 0.04
"""Time between two pushes (s): messages keep coming while a site is down."""


class Sent:
    """Messages to send: ``rows``, oldest first, of which the first ``len(at)`` have been pushed."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        self.rows = rows
        self.at: list[float] = []
        """Push time of each pushed row (monotonic, s)."""
        self.most_waiting: Counter[str] = Counter()
        """The highest result of ``waiting``, by site."""

    async def push(self, redis: "Redis", end: int, after_each: Callable[[], Awaitable[object]]) -> None:
        """Push the rows before ``end`` that are not pushed yet, in batches."""
        while pushed := self.rows[len(self.at) : min(len(self.at) + BATCH, end)]:
            now = time.monotonic()
            await redis.lpush(SOURCE, *pushed)
            self.at += [now] * len(pushed)
            await after_each()
            await asyncio.sleep(PUSH_SECONDS)

    async def waiting(self, redis: "Redis", site: str) -> int:
        """Return how many messages at site one are not settled as arrived at ``site``."""
        async with redis.pipeline(transaction=True) as transaction:
            for name in queues_for(site):
                transaction.llen(name)
            count: int = sum(await transaction.execute())
        self.most_waiting[site] = max(self.most_waiting[site], count)
        return count
