"""Site that receives messages: its server, which may be down for a while, and the times of arrival."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from compose.sites.names import arrived
from penstock.connection import connect
from penstock.testing.server import EmbeddedServer

CHECK_SECONDS: Final = 0.02
"""Seconds between two checks of a site's list, and so the precision of a delay."""


class Site:
    """Site ``name``; ``server`` is None for a server that the demo did not start and never stops."""

    def __init__(self, name: str, url: str, server: EmbeddedServer | None, redis: "Redis") -> None:
        self.name, self.url, self.redis = name, url, redis
        self.down_for = 0.0
        """Time between the server's stop and its restart (s)."""
        self.up = True
        """True if the server answered the last check."""
        self.arrivals: list[tuple[int, float]] = []
        """Number of messages at the site and the time (monotonic, s): an entry for each increase."""
        self._server = server
        self._watched = False

    @property
    def count(self) -> int:
        """Return the number of messages seen at the site."""
        return self.arrivals[-1][0] if self.arrivals else 0

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
            await asyncio.sleep(CHECK_SECONDS)
            try:
                count = await self.redis.llen(arrived(self.name))
            except RedisError:
                self.up = False
                continue
            self.up = True
            if count > self.count:
                self.arrivals.append((count, time.monotonic()))

    def longest_delay(self, pushed: Sequence[float]) -> float | None:
        """Return the longest time from ``pushed`` (monotonic) to arrival, in seconds; None if no message came."""
        before = [0, *(count for count, _ in self.arrivals)]
        firsts = zip(before, self.arrivals, strict=False)
        return max((at - pushed[first] for first, (_, at) in firsts if first < len(pushed)), default=None)


@asynccontextmanager
async def open_site(name: str, url: str | None) -> AsyncIterator[Site]:
    """Open site ``name`` on the server at ``url``, or else on an embedded one that keeps its data when stopped."""
    with nullcontext() if url else EmbeddedServer(aof=True) as server:
        server_url = server.url if server else str(url)
        async with connect(server_url) as redis:
            yield Site(name, server_url, server, redis)
