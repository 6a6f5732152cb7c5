"""monitor: carry out what is due in other namespaces, and show their state."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Final

from common.context import Context
from penstock.core.connection import connect
from penstock.core.link import Outage
from services.monitor.namespace import WatchedNamespace
from services.monitor.settings import Settings
from services.monitor.timer import SPARE_SECONDS, Timer

MAX_SLEEP_SECONDS: Final = 30.0
"""Longest sleep between two sweeps, in case that a published due time was lost."""
READY_SECONDS: Final = 60.0
"""Seconds without a complete sweep after which the monitor is not ready."""


class Monitor:
    """Runs of the service, and the HTTP server that shows whether they do their work."""

    def __init__(self) -> None:
        self._swept_at = -inf
        """When (monotonic) the last sweep of all namespaces ended."""
        self._outage: Outage | None = None

    @asynccontextmanager
    async def lifespan(self, settings: Settings) -> AsyncIterator[None]:
        """Serve the state of the watched namespaces at ``metricsPort``, whether their server is there or away."""
        if not settings.metrics_port:
            yield
            return
        from services.monitor.exporter import Exporter
        from services.monitor.queues import Queues
        from services.monitor.state import NamespaceState, read_states

        async with connect(settings.redis, name="penstock-monitor-metrics") as redis:
            elsewhere = connect(settings.service_redis) if settings.service_redis else redis
            queues, namespaces = Queues(settings, redis), [*settings.watch, str(settings.redis_namespace)]

            async def read(names: Sequence[str]) -> list[NamespaceState]:
                return await queues.add_to(await read_states(redis, elsewhere, names))

            queues.start()
            try:
                async with (
                    elsewhere,
                    Exporter(settings.metrics_port, settings.metrics_host, namespaces, read, self._problem),
                ):
                    yield
            finally:
                await queues.close()

    async def run(self, context: Context[Settings]) -> None:
        """Sweep all namespaces in one loop, and take the ``done`` entries of each in a loop of its own."""
        self._outage = context.outage
        namespaces = [WatchedNamespace(context, name) for name in context.settings.watch]
        timer = Timer(context.beside("timer"))
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(timer.listen())
            async with asyncio.TaskGroup() as work:
                work.create_task(self._sweep(context, namespaces, timer))
                for namespace in namespaces:
                    work.create_task(namespace.finish())
            listening.cancel()

    async def _sweep(self, context: Context[Settings], namespaces: Sequence[WatchedNamespace], timer: Timer) -> None:
        """Sweep what is due: a sweep of all whenever one is due would make others due in turn, for ever."""
        due_at = dict.fromkeys(namespaces, -inf)
        while context.running:
            for namespace in [each for each, due in due_at.items() if due <= time.monotonic()]:
                wait = min(await namespace.sweep(), MAX_SLEEP_SECONDS)
                due_at[namespace] = time.monotonic() + wait + SPARE_SECONDS if wait > 0 else -inf
            self._swept_at = time.monotonic()
            wait = min(due_at.values()) - self._swept_at
            if wait > 0 and await timer.sleep(wait, max(namespace.swept_at for namespace in namespaces) + wait):
                due_at = dict.fromkeys(namespaces, -inf)

    def _problem(self) -> str | None:
        """Return why the service does not do its work; None while it does."""
        if self._outage and self._outage.reason:
            return f"waiting: {self._outage.reason}"
        swept = time.monotonic() - self._swept_at < READY_SECONDS
        return None if swept else "the service does not do its work"
