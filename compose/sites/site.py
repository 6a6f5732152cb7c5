"""Site that receives messages: its server, which may be down for a while, and the times of arrival."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from compose.sites.keyspace import arrived
from penstock.connection import connect
from penstock.testing.server import EmbeddedServer

EVERY: Final = 0.02
"""Seconds between two checks of a site's list, and so the precision of a delay."""


class Site:
    """Site ``name``; ``server`` is None for a server that the demo did not start and never stops."""

    def __init__(self, name: str, url: str, server: EmbeddedServer | None, redis: "Redis") -> None:
        self.name, self.url, self.redis = name, url, redis
        self.down_for = 0.0
        """Time between the server's end and its new start (s)."""
        self.up = True
        """Whether the server answered the last check."""
        self.seen: list[tuple[int, float]] = []
        """How many messages were there, and since when (monotonic, s): an entry whenever there were more."""
        self._server = server
        self._watched = False

    @property
    def count(self) -> int:
        """Messages that have been seen here."""
        return self.seen[-1][0] if self.seen else 0

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """Stop its server for the duration, if the demo started it."""
        if self._server is None:
            yield
            return
        await asyncio.to_thread(self._server.stop)
        since = time.monotonic()
        yield
        self.down_for = time.monotonic() - since
        await asyncio.to_thread(self._server.start)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Check its list for the duration."""
        self._watched = True
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._watched = False
            await watching

    async def _watch(self) -> None:
        while self._watched:
            await asyncio.sleep(EVERY)
            try:
                count = await self.redis.llen(arrived(self.name))
            except RedisError:
                self.up = False
                continue
            self.up = True
            if count > self.count:
                self.seen.append((count, time.monotonic()))

    def longest_delay(self, pushed: Sequence[float]) -> float | None:
        """Return the longest time from ``pushed`` (monotonic) to arrival, in seconds; None if no message came."""
        before = [0, *(count for count, _ in self.seen)]
        firsts = zip(before, self.seen, strict=False)
        return max((at - pushed[first] for first, (_, at) in firsts if first < len(pushed)), default=None)


@asynccontextmanager
async def opened(name: str, url: str | None) -> AsyncIterator[Site]:
    """Open site ``name`` on the server at ``url``, or else on an embedded one that keeps its data when stopped."""
    with nullcontext() if url else EmbeddedServer(aof=True) as server:
        where = server.url if server else str(url)
        async with connect(where) as redis:
            yield Site(name, where, server, redis)
