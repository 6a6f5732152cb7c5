"""Run the loop of a service in the process of the tests, without registration, until the block ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import structlog
from redis.asyncio import Redis

from common.context import Context
from common.durability import Durability
from common.settings.base import ServiceSettings
from penstock.accounting.audit import Audit, audit
from penstock.base.keys import Keys
from penstock.core.link import Outage
from penstock.core.raw_connection import RawConnection

Run = Callable[[Context[Any]], Awaitable[None]]


def context_of(redis: "Redis", settings: ServiceSettings, id: str = "1") -> Context[Any]:
    """Return the context of instance ``id``, on connections of its own."""
    keys, log = Keys(str(settings.redis_namespace)), structlog.get_logger()
    server: Any = redis.connection_pool.connection_kwargs
    wires = partial(RawConnection.to, f"redis://{server['host']}:{server['port']}", "test")
    return Context(settings, redis, wires, log, Outage(log), Durability("memory", 1), keys=keys, id=id)


@asynccontextmanager
async def running(redis: "Redis", settings: ServiceSettings, run: Run, id: str = "1") -> AsyncIterator[Context[Any]]:
    """Run ``run``; end it with the block, and raise what it raised."""
    context = context_of(redis, settings, id)
    registry: Any = redis
    await registry.hset(context.required_keys.lists, mapping=settings.lists())
    await registry.zadd(context.required_keys.owners, {id: 0})
    task = asyncio.ensure_future(run(context))
    try:
        yield context
    finally:
        context.stop()
        await context.wake()
        await task
        await context.reset()


async def audited(redis: "Redis", settings: ServiceSettings) -> Audit:
    """Return the audit of the service's namespace; it must hold."""
    found = await audit(redis, Keys(str(settings.redis_namespace)))
    assert found
    assert found.holds, found.problems
    return found
