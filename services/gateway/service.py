"""gateway: serve a bus to other sites over websockets."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from common.context import Context
from penstock.bus import Bus
from penstock.core.atomic import AtomicWrites
from services.gateway.listener import Listener
from services.gateway.settings import Settings

COUNT_SECONDS: Final = 1.0
"""Seconds between two writes of the counters."""


class Gateway:
    """Runs of the service, and the port that it serves, which stays open while a server is away."""

    def __init__(self) -> None:
        self._counters = Counter[str]()

    @asynccontextmanager
    async def lifespan(self, settings: Settings) -> AsyncIterator[Listener]:
        """Serve the bus of ``settings``; at the end give back what peers have not confirmed."""
        bus = Bus(*settings.urls, placement=settings.placement, patience=settings.patience)
        bus.start()
        try:
            async with Listener(settings, bus, self._counters) as listener:
                yield listener
        finally:
            await bus.disconnect()

    async def run(self, context: Context[Settings]) -> None:
        """Write what was counted, once a second, and at the end."""
        while context.running:
            await context.pause(COUNT_SECONDS)
            await self._write(context)
            if context.outage.reason:
                await context.redis.ping()
                context.outage.has_room()
                context.outage.over()

    async def _write(self, context: Context[Settings]) -> None:
        counted = +self._counters
        if context.keys is None or not counted:
            return
        async with AtomicWrites(context.redis) as writes:
            for name, many in counted.items():
                writes.hincrby(context.keys.metric("gateway"), name, many)
            await writes.execute()
        self._counters.subtract(counted)
