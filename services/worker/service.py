"""worker: do the jobs of a consumer of penstock.jobs, under the kernel."""

import asyncio
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from common.context import Context
from penstock.base.errors import PenstockError
from penstock.base.log import Log, describe
from penstock.jobs import Consumer, Jobs
from penstock.jobs.ledger import Ledger
from services.worker.processes import note_ready, parent_has_gone
from services.worker.settings import Settings

LOOK_SECONDS: Final = 0.5
STOP_SHARE: Final = 0.8
"""How much of ``stopTimeout`` jobs in hand have."""
_log: Final = Log("worker")


class NoApp(PenstockError):
    """The consumer cannot be found; the message says why."""


def consumer_of(app: str) -> Consumer:
    """Return the consumer that ``app`` names, as ``module:name``. Raise ``NoApp``."""
    module, _, name = app.partition(":")
    sys.modules.pop(module, None)  # after SIGHUP its code may be another
    importlib.invalidate_caches()
    folder = os.getcwd()  # noqa: PTH109
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        reason = f"there is no module {error.name}: expected it in {folder}, or installed"
        raise NoApp(f"app {app}: {reason}") from error
    except Exception as error:
        raise NoApp(f"app {app}: importing {module} failed: {describe(error)}") from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise NoApp(f"app {app}: the module {module} has no {name}") from None
    if not isinstance(found, Consumer):
        raise NoApp(f"app {app}: expected a penstock.jobs.Consumer, found {type(found).__name__}")
    return found


class Work:
    """Runs of the service."""

    def __init__(self) -> None:
        self._jobs: Jobs | None = None
        self._consumer: Consumer | None = None

    @asynccontextmanager
    async def lifespan(self, settings: Settings) -> AsyncIterator[None]:
        """Keep the servers of the jobs connected."""
        async with Jobs(*settings.urls, prefix=settings.prefix, patience=settings.patience) as jobs:
            self._jobs = jobs
            yield

    def _usable(self, app: str) -> Consumer:
        """Return the consumer, or the former one if code was reloaded that cannot be used. Raise ``NoApp``."""
        try:
            return consumer_of(app)
        except NoApp as error:
            if self._consumer is None:
                raise
            _log.error("cannot use the new code: the former consumer goes on", reason=str(error))
            return self._consumer

    async def run(self, context: Context[Settings]) -> None:
        """Do jobs until the run ends; what is in hand then is done, or goes to others."""
        settings, connected = context.settings, self._jobs
        if connected is None:
            raise PenstockError("worker runs within its lifespan")
        self._consumer = consumer = self._usable(settings.app)
        consumer.options.stop_timeout = min(consumer.options.stop_timeout, settings.stop_timeout * STOP_SHARE)
        keys = context.required_keys
        jobs = {"prefix": settings.prefix, "group": consumer.group, "streams": sorted(consumer.options.handlers)}
        policy: dict[Any, Any] = {"keeper": "worker", "eventCapacity": settings.event_capacity}
        policy["jobs"] = json.dumps(jobs)
        await context.redis.hset(keys.policy, mapping=policy)
        running = asyncio.create_task(connected.run(consumer, Ledger(keys, str(context.id), settings.event_capacity)))
        await asyncio.sleep(0)  # until it has begun, so that it can be stopped
        note_ready()
        try:
            while context.running and not running.done():
                await context.pause(LOOK_SECONDS)
                if parent_has_gone():
                    raise PenstockError("the process that watches this one has ended")
                if context.outage.reason:
                    await context.redis.ping()
                    context.outage.has_room()
                    context.outage.over()
        finally:
            consumer.stop()
            await running
