"""monitor: what is due is done, what is done is counted, and all of it can be seen."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from common.context import Context
from penstock.connection import connect
from services.monitor.alarm import Alarm
from services.monitor.pulse import pulse
from services.monitor.settings import Settings
from services.monitor.watch import Watch

LOOK: Final = 30.0
"""Longest time between two looks at what is due (s), in case that an alarm was lost."""


@asynccontextmanager
async def seen(settings: Settings) -> AsyncIterator[None]:
    """While the process lives, show what it watches at ``metricsPort``."""
    if not settings.metrics_port:
        yield
        return
    from services.monitor.exporter import Exporter
    from services.monitor.readings import read

    async with connect(settings.redis, name="penstock-monitor-metrics") as redis:
        elsewhere = connect(settings.service_redis) if settings.service_redis else redis
        reading = partial(read, redis, elsewhere)
        shown = [*settings.watch, str(settings.redis_namespace)]
        async with (
            elsewhere,
            Exporter(settings.metrics_port, settings.metrics_host, shown, reading, lambda: pulse.is_felt),
        ):
            yield


async def run(context: Context[Settings]) -> None:
    """For all namespaces one loop does what is due; for each another one takes what workers have finished."""
    watches = [Watch(context, namespace) for namespace in context.settings.watch]
    alarm = Alarm(context.beside("alarm"))
    async with asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(alarm.listen())
        async with asyncio.TaskGroup() as work:
            work.create_task(sweep(context, watches, alarm))
            for watch in watches:
                work.create_task(watch.finish())
        listening.cancel()


async def sweep(context: Context[Settings], watches: Sequence[Watch], alarm: Alarm) -> None:
    """Do what is due, and sleep until more is."""
    while context.running:
        wait = min([await watch.sweep() for watch in watches])
        pulse.beat()
        if wait > 0:
            wait = min(wait + 0.001, LOOK)
            await alarm.wait(wait, before=max(watch.looked_at for watch in watches) + wait)
