"""The sweep: each due message is handled once, by any number of monitors, at a cost that does not grow."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from common.context import Context
from penstock.base.keys import Keys
from penstock.core.script import Script
from services.monitor import reply_lists
from services.monitor import service as monitor
from services.monitor.reply_lists import ReplyListExpiry
from services.monitor.settings import Settings
from services.monitor.timer import Timer
from tests.support.clock import Span
from tests.support.harness import PATIENCE
from tests.support.hop import Hop, Start
from tests.support.in_process import context_of

TEST_COMMANDS = {"info", "config", "config|resetstat", "keys", "scan"}
"""Commands of the tests themselves."""


async def commands(hop: Hop, work: Awaitable[Any]) -> dict[str, int]:
    """Return how often ``work`` calls each command, including calls by scripts."""
    await hop.redis.config_resetstat()
    await work
    found = {
        name.removeprefix("cmdstat_"): stat["calls"] for name, stat in (await hop.redis.info("commandstats")).items()
    }
    return {name: calls for name, calls in found.items() if name not in TEST_COMMANDS}


async def test_three_monitors_that_sweep_at_once_act_once_on_each_message(start: Start) -> None:
    hop = await start(3, message_timeout=10, attempts=2, backoff=[5])
    messages = [b"%d" % number for number in range(700)]
    await hop.push(*messages)
    await hop.redis.delete(*[hop.keys.message(str(id)) for id in range(1, 101)])
    left = [messages[100:], messages[100:], []]
    for seconds, counts in (
        (10, {"timeout": 600, "expired": 100}),
        (5, {"timeout": 600, "expired": 100, "retry": 600}),
        (10, {"timeout": 1200, "expired": 100, "retry": 600, "dead": 600}),
    ):
        await hop.advance(seconds)
        await asyncio.gather(*map(hop.sweep, range(3)))
        assert {name: count for name, count in (await hop.counts()).items() if name in counts} == counts
        assert await hop.problems() == []
    assert Counter(await hop.held()) == Counter(messages + left[0])
    assert Counter(letter["message"] for letter in await hop.letters()) == Counter(left[0])
    assert (await hop.in_flight(), await hop.delayed(), await hop.ids()) == ([], [], [])


@pytest.mark.parametrize("attempts", [2, 1], ids=["retried", "buried"])
async def test_large_messages_are_swept_a_few_at_a_time(start: Start, attempts: int) -> None:
    """One sweep acts on all of them, and no script on more than 2 MB and one message."""
    hop = await start(message_timeout=10, attempts=attempts)
    await hop.push(*(b"%d" % number * 1_000_000 for number in range(8)))
    await hop.advance(10)
    acted = list[int]()
    run = hop.monitors[0].context.run

    async def counted(script: Script, *more: Any, **named: Any) -> Any:
        reply = await run(script, *more, **named)
        acted.extend([reply[1]] if script.name == "sweep.lua" else [])
        return reply

    context: Any = hop.monitors[0].context
    context.run = counted
    await hop.monitors[0].sweeper.sweep(hop.policy)
    assert (sum(acted), max(acted)) == (8, 3 if attempts == 2 else 2)


async def test_those_of_one_batch_are_tried_again_and_buried_in_the_order_in_which_they_came(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=2, backoff=[5])
    messages = [b"%d" % number for number in range(700)]
    await hop.push(*messages)
    for seconds in (10, 5, 10):
        await hop.advance(seconds)
        await hop.sweep()
    assert await hop.held() == messages + messages
    assert [letter["message"] for letter in await hop.letters()] == messages


@pytest.mark.parametrize(("wanted", "deliveries"), [(1, 1), (2, 2), (9, 3)])
@pytest.mark.parametrize("delay", [0, 100])
async def test_a_message_may_want_fewer_attempts(start: Start, wanted: int, deliveries: int, delay: int) -> None:
    hop = await start(message_timeout=10, attempts=3, backoff=[5])
    message = json.dumps({"meta": {"id": "a", "attempts": wanted, "delay": delay}}).encode()
    await hop.push(message)
    if delay:
        await hop.advance(delay)
        await hop.sweep()
    for number in range(3):
        if number:
            await hop.advance(5)
            await hop.sweep()
        await hop.advance(10)
        await hop.sweep()
    assert await hop.held() == [message] * deliveries
    assert [(letter["reason"], letter["attempts"]) for letter in await hop.letters()] == [("timeout", deliveries)]


async def test_more_than_a_batch_is_done_in_several(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=1)
    hop.monitors[0].context.settings.batch = 7
    messages = [b"%d" % number for number in range(100)]
    await hop.push(*messages)
    await hop.advance(10)
    await hop.sweep()
    assert Counter(letter["message"] for letter in await hop.letters()) == Counter(messages)
    assert (await hop.counts())["dead"] == 100


async def test_the_wait_is_until_the_first_that_falls_due(start: Start) -> None:
    hop = await start(message_timeout=100, message_expire=5_000)
    began = await hop.now()
    assert await hop.sweep() == float("inf")
    await hop.push(b'{"meta":{"delay":1000}}')
    assert await hop.sweep() == 1_000 - Span(0, await hop.now() - began)
    await hop.push(b"hello")
    assert await hop.sweep() == 10, "then it looks which messages have been taken"
    await hop.advance(50)
    assert await hop.sweep() == 50 - Span(0, await hop.now() - began), "all have been taken"
    await hop.push_done("2")
    assert await hop.sweep() == 950 - Span(0, await hop.now() - began)


async def in_flight(start: Start, number: int) -> Hop:
    """Return a hop with five overdue messages and ``number`` others, of which a tenth are delayed."""
    hop = await start(message_timeout=3600, message_expire=40_000)
    await hop.push(*[b"overdue %d" % each for each in range(5)])
    await hop.advance(3600)
    await hop.push(*[b"%d" % each for each in range(number * 9 // 10)])
    await hop.push(*[b'{"meta":{"delay":100}}'] * (number // 10))
    return hop


async def test_a_sweep_costs_the_same_commands_with_10_and_with_10000_in_flight(start: Start) -> None:
    few = await in_flight(start, 10)
    with_few = await commands(few, few.sweep())
    await few.redis.flushall()
    many = await in_flight(start, 10_000)
    with_many = await commands(many, many.sweep())
    assert with_few == with_many
    assert (await many.counts()).items() >= {"timeout": 5, "registered": 10_005}.items()
    assert not {"keys", "scan", "sscan", "hscan", "zscan", "smembers", "lrem", "lrange"} & with_many.keys()
    assert sum(with_many.values()) < 5 * 20 + 40, with_many


async def test_a_done_costs_the_same_commands_with_10_and_with_10000_in_flight(start: Start) -> None:
    few = await in_flight(start, 10)
    with_few = await commands(few, few.push_done("1", "7", {"xid": "3"}))
    await few.redis.flushall()
    many = await in_flight(start, 10_000)
    with_many = await commands(many, many.push_done("1", "7", {"xid": "3"}))
    assert with_few == with_many
    assert not {"keys", "scan", "hgetall", "lrem"} & with_many.keys()


async def test_a_damaged_record_counts_as_expired(start: Start) -> None:
    hop = await start(message_timeout=10)
    await hop.push(b"hello", b"hello")
    await hop.redis.hdel(hop.keys.message("1"), "message")
    await hop.advance(10)
    await hop.sweep()
    assert (await hop.counts()).items() >= {"expired": 1, "timeout": 1}.items()
    assert not await hop.redis.exists(hop.keys.message("1"))
    await hop.push_done("aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d")
    assert (await hop.counts())["done:late"] == 1


async def test_the_last_published_policy_is_in_force(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=3)
    await hop.push(b"hello")
    hop = await start(message_timeout=20, attempts=1)
    await hop.advance(10)
    await hop.sweep()
    assert [letter["reason"] for letter in await hop.letters()] == ["timeout"]


async def test_a_batch_of_the_largest_size_of_each_kind_may_be_due_at_once(start: Start) -> None:
    hop = await start(message_timeout=10, message_expire=500, backoff=[100])
    hop.monitors[0].context.settings.batch = 1000
    await hop.push(*[b"hello"] * 1000, *[b'{"meta":{"id":"a","delay":10}}'] * 1000)
    await hop.advance(10)
    await hop.sweep()
    assert await hop.counts() == {"taken": 2000, "delivered": 2000, "registered": 2000, "timeout": 1000}
    await hop.push_done_batch(*["a"] * 1000)
    assert (await hop.counts())["done"] == 1000


@asynccontextmanager
async def listening(redis: Redis, url: str) -> AsyncIterator[tuple[Timer, Context[Settings], "asyncio.Task[None]"]]:
    """Yield a timer that has its reply to the subscription, its context, and the task that listens."""
    context = context_of(redis, Settings(redis=url, redis_namespace="watcher", watch=["demo"], metrics_port=0))
    timer = Timer(context)
    task = asyncio.create_task(timer.listen())
    try:
        await timer.sleep(100, before=1_000)  # timing: the reply to the subscription ends the first sleep
        yield timer, context, task
    finally:
        task.cancel()
        await context.reset()


async def test_a_timer_sleeps_until_the_earliest_time_that_was_published(redis: Redis, redis_url: str) -> None:
    """A script publishes when something falls due, in seconds to come: until then there is nothing to do."""
    async with listening(redis, redis_url) as (timer, _, _):
        begun = time.monotonic()
        sleeping = asyncio.create_task(timer.sleep(3_600, before=4_600))  # timing: what is published ends it
        for due in ("1500", "1000.4", "4000"):
            await redis.publish("demo:message:due", due)
        await asyncio.wait_for(sleeping, PATIENCE)
        assert time.monotonic() - begun >= 0.4


async def test_a_timer_that_receives_nothing_for_long_goes_on_listening(redis: Redis, redis_url: str) -> None:
    """Silence is an error only if a reply is owed; a subscription may be silent."""
    async with listening(redis, redis_url) as (timer, context, task):
        await context.wire.cut_if_silent(-1)
        await redis.publish("demo:message:due", "3")
        await asyncio.wait_for(timer.sleep(3_600, before=3_603), PATIENCE)  # timing: what was published ends it
        assert not task.done()


class Idle:
    """A watched namespace in which nothing is due; ``late`` seconds after the others it has something for once."""

    swept_at = 0.0

    def __init__(self, context: Any, name: str, late: float, now: Callable[[], float]) -> None:
        self._lists, self._begins, self._now = ReplyListExpiry(context, Keys(name)), late, now

    async def sweep(self) -> float:
        if (wait := self._begins - self._now()) > 0:
            return wait
        return await self._lists.expire()


async def test_namespaces_that_begin_one_after_the_other_do_not_keep_a_monitor_awake(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists for answers are looked at once a second at most: a look that comes too early is due again soon."""
    now, sleeps = 0.0, list[float]()
    for module in (monitor, reply_lists):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    context: Any = SimpleNamespace(running=True, redis=redis, settings=SimpleNamespace(batch=500))

    class Clock:
        async def sleep(self, seconds: float, _: float) -> bool:
            nonlocal now
            now += seconds
            sleeps.append(seconds)
            context.running = len(sleeps) < 20
            return False

    namespaces: Any = [Idle(context, str(number), number * 0.25, lambda: now) for number in range(4)]
    clock: Any = Clock()
    await monitor.Monitor()._sweep(context, namespaces, clock)
    assert sum(sleeps) > 100, sleeps
