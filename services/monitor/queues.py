"""What waits for programs and services on the server of the watched namespaces."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.base.keys import Keys
from penstock.core.tasks import Tasks
from penstock.inspect.waiting import Names, Waiting, find, read_lists, read_waiting
from services.monitor.settings import Settings
from services.monitor.state import NamespaceState

SEARCH_SECONDS: Final = 10.0
"""Pause between two searches of all keys."""
READ_SECONDS: Final = 2.5
"""Longest that a scrape waits for what waits in queues: half of what it has."""
REMEMBERED_SECONDS: Final = 86_400
"""How long an empty list is shown that no consumer has had since."""


class Queues:
    """Finds lists, streams and queues all the time, slowly, and reads what waits in them at each scrape."""

    def __init__(self, settings: Settings, redis: "Redis") -> None:
        self._redis, self._watch = redis, settings.watch
        self._own = Keys(str(settings.redis_namespace))
        self._names = Names()
        self._last: dict[str, list[Waiting]] = {}
        self._reading: asyncio.Task[None] | None = None
        """Reads on while a scrape shows what was read last: many queues, or a slow server, must not hide all else."""
        self._tasks = Tasks()

    def start(self) -> None:
        """Begin to search."""
        self._tasks.begin(self._search())

    async def close(self) -> None:
        """End all that it does."""
        await self._tasks.cancel()

    async def _search(self) -> None:
        """Search until cancelled; while the server does not answer, keep what was found."""
        while True:
            with suppress(RedisError, PenstockError, OSError):
                await self.look()
            await asyncio.sleep(SEARCH_SECONDS)

    async def look(self) -> None:
        """Search once. Keep lists for the time in which nobody takes from them; forget those that stay empty."""
        self._names = await find(self._redis, [*self._watch, self._own.namespace], patient=True)
        now, seen = time.time(), encoded(self._own.seen)
        rows = await read_lists(self._redis, self._names.lists)
        if used := {encoded(row.queue): now for row in rows if row.workers or row.waiting or row.in_hand}:
            await self._redis.zadd(seen, used)
        await self._redis.zremrangebyscore(seen, 0, now - REMEMBERED_SECONDS)

    async def add_to(self, states: Sequence[NamespaceState]) -> list[NamespaceState]:
        """Return ``states`` with what waits for each namespace: for its service, or below its name.

        What is below no watched namespace is shown with the first one.
        """
        alive = {each.namespace: sum(not one.late for one in each.instances) for each in states}
        if self._reading is None or self._reading.done():
            self._reading = self._tasks.begin(self._read(alive))
        await asyncio.wait([self._reading], timeout=READ_SECONDS)
        if self._reading.done():
            self._reading.result()
        return [replace(each, queues=self._last.get(each.namespace, ())) for each in states]

    async def _read(self, alive: Mapping[str, int]) -> None:
        self._last = await read_waiting(self._redis, self._names, alive, self._watch[0])
