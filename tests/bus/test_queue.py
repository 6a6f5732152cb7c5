"""A queue of the bus: attach, push, consume in three ways, acknowledge, describe, close."""

import asyncio

import pytest
from redis.asyncio import Redis

from penstock.base.errors import WrongType
from penstock.bus import Bus
from tests.bus.given import attached, keep_alive
from tests.support.harness import eventually


async def test_the_keys_are_those_of_busmq(bus: Bus, redis: "Redis") -> None:
    await attached(bus, "hello", ttl=60)
    assert await redis.hgetall("bus:queue:foo:metadata") == {
        b"ttl": b"60",
        b"source": b"local",
        b"discover": b"false",
        b"maxsize": b"0",
    }
    assert await redis.lrange("bus:queue:foo:messages", 0, -1) == [b"1", b"hello"]
    assert await redis.get("bus:queue:foo:msgid") == b"1"
    assert 50 < await redis.ttl("bus:queue:foo:messages") <= 60


async def test_push_many_gets_its_turn_beside_a_task_that_pushes_without_end(bus: Bus) -> None:
    queue = await attached(bus)

    async def push() -> None:
        while True:
            first, *_ = [queue.push("x") for _ in range(50)]
            await first  # the others are still under way

    endless = asyncio.ensure_future(push())
    await eventually(lambda: queue.pushed)
    try:
        async with asyncio.timeout(30):
            ids = await queue.push_many(["a"] * 1_200)
    finally:
        endless.cancel()
    assert len(ids) == 1_200
    assert ids == sorted(ids)


async def test_a_push_many_that_is_cancelled_while_it_waits_pushes_nothing(bus: Bus) -> None:
    queue = bus.queue("foo")
    waits = asyncio.ensure_future(queue.push_many([*"ab"]))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    await queue.attach()
    assert await queue.push("c") == 1


async def test_one_queue_that_cannot_be_kept_alive_does_not_keep_others_from_it(
    bus: Bus, redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [await attached(bus, name=name, ttl=60) for name in "abc"]

    async def fail(since: float) -> bool:
        raise WrongType("a key is of another type")

    monkeypatch.setattr(queues[0], "note_gone", fail)
    await redis.delete(*(each.keys.metadata for each in queues[:2]))
    keep_alive(bus)
    await eventually(lambda: not queues[1].is_attached)
    assert [each.is_attached for each in queues] == [True, False, True]
