"""A queue of the bus: attach, push, consume in three ways, acknowledge, describe, close."""

import asyncio

import pytest
from redis.asyncio import Redis

from penstock.base.errors import WrongCall, WrongType
from penstock.bus import Bus
from tests.bus.given import attached, keep_alive, take
from tests.support.harness import eventually


async def test_messages_come_in_order_with_their_ids(bus: Bus) -> None:
    queue = await attached(bus, "a", b"\xff\x00", "")
    assert await queue.push({"x": [1, None]}, json=True) == 4
    assert await take(queue, 4) == [(1, b"a"), (2, b"\xff\x00"), (3, b""), (4, b'{"x":[1,null]}')]
    assert (queue.pushed, queue.consumed, await queue.count()) == (4, 4, 0)


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


async def test_values_of_metadata_are_kept_as_text(bus: Bus) -> None:
    queue = await attached(bus)
    await queue.set_metadata({"zero": 0, "no": False, "empty": ""})
    await queue.set_metadata({"name": "ü"})
    with pytest.raises(WrongCall, match="moving, source"):
        await queue.set_metadata({"source": "x", "moving": "y"})
    assert await queue.get_metadata("zero") == "0"
    found = await queue.metadata()
    assert (found["no"], found["empty"], found["name"], await queue.get_metadata("none")) == ("false", "", "ü", None)


async def test_calls_that_make_no_sense_say_what_was_expected(bus: Bus) -> None:
    queue = bus.queue("foo")
    with pytest.raises(WrongCall, match="attach"):
        await queue.close()
    with pytest.raises(WrongCall, match="attach"):
        await queue.ack(1)
    with pytest.raises(WrongCall, match="json=True"):
        queue.push(5)  # type: ignore[call-overload]
    with pytest.raises(WrongCall, match="reliable"):
        queue.consume(exclusive=True)
    with pytest.raises(WrongCall, match="no event"):
        queue.on("massage", print)
    await queue.attach()
    with pytest.raises(WrongCall, match="attached already"):
        await queue.attach()


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
