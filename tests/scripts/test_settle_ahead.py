"""Batches read ahead: whatever happens between two of them, each message is settled once and in order."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from redis.asyncio import Redis

from common.context import Context
from common.process import Process
from common.settings.base import ServiceSettings
from common.settings.fields import setting
from common.settings.roles import In, Outs, Pending, PopTimeout
from penstock.accounting.audit import audit
from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from tests.support.harness import eventually

KEYS = Keys("demo")
MESSAGES = [b"%d" % number for number in range(500)]
Disturb = Callable[[Any, Context[Any]], Awaitable[object]]


class Settings(ServiceSettings):
    service: ClassVar[str] = "mover"
    buries: ClassVar[bool] = True

    in_: In = "in"
    pending: Pending = "pending"
    out: Outs = setting("list of names", "Where to.", ["a"])
    pop_timeout: PopTimeout = 5


async def moved(redis: Any, url: str, most: int, disturbs: dict[int, Disturb], total: int = len(MESSAGES)) -> list[int]:
    """Move all messages to list a; disturb before the settling of some batches. Return the sizes of the batches."""
    sizes: list[int] = []

    async def run(context: Context[Settings]) -> None:
        async for batch in context.batches(most, ahead=True):
            sizes.append(len(batch))
            if disturb := disturbs.pop(len(sizes), None):
                await disturb(redis, context)
            await context.settle(batch, {"a": batch})

    async def stop() -> None:
        async with asyncio.timeout(60):
            while int(await redis.hget(KEYS.metric("settled"), "count") or 0) < total:
                await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    settings = Settings(redis=url, redis_namespace="demo")
    stopping = asyncio.create_task(stop())
    assert await asyncio.wait_for(Process(settings, run).serve(), 90) == 0
    await stopping
    assert not disturbs
    return sizes


async def assert_once(redis: Any, *more: bytes) -> list[bytes]:
    """Assert that list a has each message once and that the audit holds; return it, oldest first."""
    found: list[bytes] = (await redis.lrange("a", 0, -1))[::-1]
    assert Counter(found) == Counter([*MESSAGES, *more])
    assert not await redis.exists("in", "pending:1")
    audited = await audit(redis, KEYS)
    assert audited
    assert audited.holds, audited.problems
    return found


@pytest.mark.parametrize("most", [1, 2, 7, 100, 500, 5_000])
async def test_a_backlog_is_moved_once_and_in_order(redis: Any, redis_url: str, most: int) -> None:
    await redis.lpush("in", *MESSAGES)
    sizes = await moved(redis, redis_url, most, {})
    assert await assert_once(redis) == MESSAGES
    assert max(sizes) <= most
    assert sum(sizes) == len(MESSAGES)


async def test_the_server_reads_the_next_batch_while_the_caller_works_on_one(redis: Any, redis_url: str) -> None:
    async def await_next(redis: Any, context: Context[Any]) -> None:
        async with asyncio.timeout(60):
            while await redis.llen(context.pending("pending")) != 100:
                await asyncio.sleep(0.01)

    await redis.lpush("in", *MESSAGES)
    await moved(redis, redis_url, 50, {1: await_next, 4: await_next})
    assert await assert_once(redis) == MESSAGES


async def test_a_message_that_comes_alone_costs_one_call_to_read_it_and_one_to_settle_it(
    redis: Any, redis_url: str
) -> None:
    async def push(redis: Any, context: Context[Any]) -> None:
        pushing.append(asyncio.create_task(push_once_idle(MESSAGES[len(pushing) + 1])))

    async def push_once_idle(message: bytes) -> None:
        while not (await redis.info("clients"))["blocked_clients"]:
            await asyncio.sleep(0.001)
        await redis.lpush("in", message)

    pushing: list[asyncio.Task[None]] = []
    await redis.lpush("in", MESSAGES[0])
    disturbs: dict[int, Disturb] = dict.fromkeys(range(1, 101), push)
    await redis.config_resetstat()
    await moved(redis, redis_url, 50, disturbs, total=101)
    calls = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    await asyncio.gather(*pushing)
    assert await redis.lrange("a", 0, -1) == MESSAGES[100::-1]
    assert calls < 101 * 2 + 50, calls


async def test_what_an_earlier_run_left_comes_first(redis: Any, redis_url: str) -> None:
    await redis.lpush("pending:7", *MESSAGES[:300])
    await redis.zadd(KEYS.owners, {"7": 1})
    await redis.lpush("in", *MESSAGES[300:])
    await moved(redis, redis_url, 40, {})
    assert await assert_once(redis) == MESSAGES


async def adopt(redis: Any, context: Context[Any]) -> None:
    """Add a message as an adoption does."""
    await redis.rpush(context.pending("pending"), "adopted")


async def test_a_message_that_is_adopted_between_two_batches_is_settled_next(redis: Any, redis_url: str) -> None:
    await redis.lpush("in", *MESSAGES)
    await moved(redis, redis_url, 50, {3: adopt}, total=len(MESSAGES) + 1)
    found = await assert_once(redis, b"adopted")
    found.remove(b"adopted")
    assert found == MESSAGES


async def forget(redis: Any, context: Context[Any]) -> None:
    await redis.script_flush()


async def test_a_server_that_forgets_its_scripts_loses_nothing(redis: Any, redis_url: str) -> None:
    await redis.lpush("in", *MESSAGES)
    await moved(redis, redis_url, 50, {2: forget, 5: forget, 6: forget})
    assert await assert_once(redis) == MESSAGES


async def obstruct(redis: Any, context: Context[Any]) -> None:
    """Put a key of another type in the way of the next batches for a while."""
    await redis.rename("a", "aside")
    await redis.set("a", "in the way")

    async def clear() -> None:
        await eventually(lambda: redis.hget(KEYS.metric("error"), "count"))
        await redis.rename("aside", "a")

    context.log.info("obstructed", by=asyncio.create_task(clear()))


async def test_a_list_of_a_wrong_type_stops_all_batches_until_it_is_mended(redis: Any, redis_url: str) -> None:
    await redis.lpush("in", *MESSAGES)
    await moved(redis, redis_url, 50, {4: obstruct})
    assert await assert_once(redis) == MESSAGES


async def cut(redis: Any, context: Context[Any]) -> None:
    """Cut the connection on which the batches are under way."""
    await redis.client_kill_filter(_id=context.wire.id)


async def test_a_connection_that_is_cut_loses_and_doubles_nothing(redis: Any, redis_url: str) -> None:
    await redis.lpush("in", *MESSAGES)
    await moved(redis, redis_url, 50, {2: cut, 5: cut, 9: cut})
    assert await assert_once(redis) == MESSAGES


async def test_a_full_server_is_waited_for() -> None:
    """Made messages need room: nothing is settled until it is there, and then all is, once."""
    with EmbeddedServer() as server:
        async with Redis.from_url(server.url) as redis:
            await redis.lpush("in", *MESSAGES)

            async def fill(redis: Any, context: Context[Any]) -> None:
                await redis.config_set("maxmemory", 1)

                async def make_room() -> None:
                    await eventually(lambda: context.outage.reason)
                    await redis.config_set("maxmemory", 0)

                context.log.info("full", by=asyncio.create_task(make_room()))

            sizes: list[int] = []

            async def run(context: Context[Settings]) -> None:
                async for batch in context.batches(50, ahead=True):
                    sizes.append(len(batch))
                    if len(sizes) == 3:
                        await fill(redis, context)
                    await context.settle(batch, {"a": [b"made of " + message for message in batch]})
                    if await redis.llen("a") == len(MESSAGES):
                        os.kill(os.getpid(), signal.SIGTERM)

            settings = Settings(redis=server.url, redis_namespace="demo")
            process = asyncio.create_task(Process(settings, run).serve())
            async with asyncio.timeout(60):
                while await redis.llen("a") < len(MESSAGES):
                    await asyncio.sleep(0.01)
            if not process.done():
                os.kill(os.getpid(), signal.SIGTERM)
            assert await process == 0
            assert (await redis.lrange("a", 0, -1))[::-1] == [b"made of " + message for message in MESSAGES]
