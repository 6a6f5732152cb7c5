"""A site that messages arrive at: its server, which may be down for a while, and when they came."""

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
"""Time between two looks at the list of a site (s): so much longer than it was a delay may seem."""


class Site:
    """The site ``name``; its ``server`` is None where it is somebody's own, which is never stopped."""

    def __init__(self, name: str, url: str, server: EmbeddedServer | None, redis: "Redis") -> None:
        self.name, self.url, self.redis = name, url, redis
        self.down_for = 0.0
        """Time between the server's end and its new start (s)."""
        self.up = True
        """Whether the server answered the last look."""
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
        """Its server is stopped meanwhile, if it is the demo's own."""
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
        """Its list is looked at meanwhile."""
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
        """From push to arrival (s), the messages having been ``pushed`` then (monotonic, s); None where none came."""
        before = [0, *(count for count, _ in self.seen)]
        firsts = zip(before, self.seen, strict=False)
        return max((at - pushed[first] for first, (_, at) in firsts if first < len(pushed)), default=None)


@asynccontextmanager
async def opened(name: str, url: str | None) -> AsyncIterator[Site]:
    """Site ``name`` on the server at ``url``, or on one of its own that keeps its data when it is stopped."""
    with nullcontext() if url else EmbeddedServer(aof=True) as server:
        where = server.url if server else str(url)
        async with connect(where) as redis:
            yield Site(name, where, server, redis)
