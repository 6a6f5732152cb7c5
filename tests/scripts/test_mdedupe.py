"""mdedupe: of equal messages the first one passes, for a time; the others are counted."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from common.context import Context
from penstock.base.encoding import decoded
from penstock.base.keys import Keys
from penstock.core.link import is_full
from services.mdedupe.deduplication import _dedupe_batch, passing
from services.mdedupe.service import run
from services.mdedupe.settings import Settings
from tests.support.harness import eventually
from tests.support.in_process import audited, context_of, running

KEYS = Keys("once")
NAMES = {"redis": "redis://h", "redis_namespace": "once", "in_": "in", "pending": "pending", "out": "out"}


def settings(**more: Any) -> Settings:
    return Settings(**{**NAMES, **more})


async def texts(redis: Any, name: str) -> list[str]:
    """Return the messages of a list as text, oldest first."""
    return [*map(decoded, reversed(await redis.lrange(name, 0, -1)))]


async def passed(redis: Any, *messages: str | bytes, **more: Any) -> list[str]:
    """Push ``messages`` in turn, and return what is in ``out`` once mdedupe has settled all."""
    chosen = settings(**more)
    await redis.lpush("in", *messages)
    async with running(redis, chosen, run):
        await eventually(lambda: settled(redis))
    await audited(redis, chosen)
    return await texts(redis, "out")


async def settled(redis: Any) -> bool:
    return not await redis.exists("in", "pending:1")


async def metric(redis: Any, name: str) -> dict[str, int]:
    return {field.decode(): int(value) for field, value in (await redis.hgetall(KEYS.metric(name))).items()}


async def test_a_a_b_becomes_a_b_and_the_duplicate_is_counted(redis: Redis) -> None:
    assert await passed(redis, "a", "a", "b") == ["a", "b"]
    assert await metric(redis, "dropped") == {"count": 1, "in": 1}
    assert await metric(redis, "duplicate") == {"count": 1}
    assert await metric(redis, "delivered") == {"count": 2, "out": 2}
    assert await metric(redis, "forgotten") == {}


async def test_a_key_that_was_remembered_before_the_clock_was_set_back_is_not_remembered_for_longer(
    redis: Redis,
) -> None:
    await passed(redis, "a", expire=100)
    key: Any
    (key,) = await redis.zrange(KEYS.remembered, 0, -1)
    await redis.zincrby(KEYS.remembered, 3_600_000_000, key)
    assert await passed(redis, "a", "b", expire=100) == ["a", "b"], "a is a duplicate still"
    seconds, _ = await redis.time()
    assert (await redis.zscore(KEYS.remembered, key) or 0) <= (seconds + 1) * 1e6
    await redis.zincrby(KEYS.remembered, -101_000_000, key)
    assert await passed(redis, "a", expire=100) == ["a", "b", "a"]


async def test_remembered_keys_expire_by_themselves(redis: Redis) -> None:
    await passed(redis, "a", expire=100)
    assert 90 < await redis.ttl(KEYS.remembered) <= 101


@pytest.mark.parametrize(
    ("messages", "more", "expected"),
    [
        (['{"meta":{"id":"7"},"n":1}', '{"meta":{"id":"7"},"n":2}', '{"meta":{"id":"8"}}'], {"by": "id"}, [0, 2]),
        (["7", "007", '{"meta":{"id":7}}', '{"meta":{"id":"7"}}', "8"], {"by": "id"}, [0, 3, 4]),
        (["no json", "no json", "other", "other "], {"by": "id"}, [0, 2, 3]),
        (['{"a":{"b":1},"n":1}', '{"n":2,"a":{"b":1}}', '{"a":{"b":2}}'], {"by": "field", "field": "a.b"}, [0, 2]),
        (['{"a":1}', '{"a":"1"}', '{"a":1.0}', '{"a": 1}'], {"by": "field", "field": "a"}, [0, 1]),
        (
            ['{"a":1795880000.123456788}', '{"a":1795880000.123456789}', '{"a":1e400}', '{"a":1e500}', '{"a":10e399}'],
            {"by": "field", "field": "a"},
            [0, 1, 2, 3],
        ),
        (['{"a":{"x":1,"y":[1e0]}}', '{"a":{"y":[1.0],"x":1}}', '{"a":[1]}'], {"by": "field", "field": "a"}, [0, 2]),
        (['{"a":{"x":1,"y":2}}', '{"a":{"y":2,"x":1}}'], {"by": "field", "field": "a"}, [0]),
        (['{"b":1}', '{"b":2}', '{"b":1}', "none", '{"a":null}'], {"by": "field", "field": "a"}, [0, 1, 3, 4]),
        (["[" * 100_000, "[" * 100_000, "9" * 5_000], {"by": "field", "field": "a"}, [0, 2]),
    ],
)
async def test_messages_are_equal_by_their_id_or_by_a_field(
    redis: Redis, messages: list[str], more: dict[str, Any], expected: list[int]
) -> None:
    assert await passed(redis, *messages, **more) == [messages[place] for place in expected]


async def test_any_bytes_pass_and_are_compared_as_they_are(redis: Any) -> None:
    messages = [b"", b"\0", b"\0\0", b"\xff\xfe", b"", b"\xff\xfe", b"x" * 100_000, b"x" * 100_001, b"x" * 100_000]
    await passed(redis, *messages)
    assert await redis.lrange("out", 0, -1) == [messages[place] for place in (7, 6, 3, 2, 1, 0)]


async def test_thousands_of_messages_and_a_smaller_capacity_after_a_reload(redis: Any) -> None:
    names = [f"message {number}" for number in range(12_000)]
    assert await passed(redis, *names) == names
    assert await passed(redis, "new", capacity=10) == [*names, "new"]
    assert 10 < await redis.zcard(KEYS.remembered) < 12_001  # some thousand a move: the server is never busy for long
    await passed(redis, "x", capacity=10)
    await passed(redis, "y", capacity=10)
    assert await redis.zcard(KEYS.remembered) == 10
    assert await metric(redis, "forgotten") == {"count": 12_003 - 10}


@pytest.mark.parametrize("by", ["digest", "id"])
async def test_what_a_dead_instance_had_in_hand_is_no_duplicate_of_itself(redis: Redis, by: str) -> None:
    await redis.lpush("pending:1", "a", "b")
    assert await passed(redis, "b", "c", by=by) == ["a", "b", "c"]
    assert await metric(redis, "taken") == {"count": 4, "out": 3, "in": 1}


async def test_a_batch_that_has_changed_since_its_keys_were_read_is_read_again(redis: Any) -> None:
    outcomes: list[tuple[tuple[bytes, ...], int]] = []

    async def act(context: Context[Settings]) -> None:
        async for batch in context.batches():
            if not outcomes:
                await redis.rpush("pending:1", "adopted")
            outcomes.append((batch, await context.settle_by(_dedupe_batch, batch, known=[*batch], **passing(context))))

    await redis.lpush("pending:1", "a", "b")
    async with running(redis, settings(), act):
        await eventually(lambda: settled(redis))
    assert outcomes == [((b"a", b"b"), 0), ((b"adopted", b"a", b"b"), 1)]
    assert await texts(redis, "out") == ["adopted", "a", "b"]


@pytest.mark.parametrize("by", ["digest", "id"])
async def test_a_full_server_keeps_messages_where_they_are_until_there_is_room(redis: Any, fill: Any, by: str) -> None:
    await redis.lpush("in", "a", "b", "a")
    await fill()
    context = context_of(redis, settings(by=by))
    task = asyncio.ensure_future(run(context))
    await eventually(lambda: refused(context, task))
    context.stop()
    await asyncio.wait({task})
    assert await redis.llen("in") + await redis.llen("pending:1") == 3
    assert by == "id" or is_full(task.exception())  # the kernel backs off, and begins the run again
    await redis.config_set("maxmemory", 0)
    await context.reset()
    assert await passed(redis, "b", by=by) == ["a", "b"]


async def refused(context: Context[Settings], task: "asyncio.Future[None]") -> bool:
    return context.outage.server_is_full or task.done()
