"""Options, values and events of a queue, row by row of the inventory (BQ-20 to BQ-38)."""

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Gone, WrongCall
from penstock.bus import Bus, Message, Queue
from tests.bus.given import attached, calls, heard, settled, take
from tests.support.harness import eventually


async def test_BQ_20_metadata_without_a_ttl_are_no_queue(bus: Bus, redis: "Redis") -> None:
    """A federating busmq keeps the source of another site's queue in such a key."""
    await redis.hset("bus:queue:foo:metadata", mapping={"source": "http://elsewhere"})
    queue = bus.queue("foo")
    assert await queue.find() == "http://elsewhere"
    assert await queue.attach() is False
    assert await queue.find() == "local"


async def test_BQ_21_a_queue_expires_with_its_messages_once_nobody_is_attached(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, "x", ttl=60)
    await take(queue, 1, reliable=True)
    await queue.push("y")
    events = heard(queue)
    await queue.detach()
    assert events == [("detaching",), ("detached",)]
    assert await queue.exists()
    await queue.detach()
    assert len(events) == 2
    assert not bus._alive.queues
    left = await redis.keys("*")
    assert len(left) == 4
    for key in left:
        assert 0 < await redis.ttl(key) <= 60
        await redis.pexpire(key, 1)
    await eventually(lambda: _no_keys(redis))
    assert not await queue.exists()


async def test_BQ_22_all_keys_are_kept_alive_while_anybody_is_attached(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, "x", "y", ttl=3)
    await take(queue, 1, reliable=True)
    for _ in range(2):
        for key in queue.keys:
            assert await redis.expire(key, 1_000)
        assert bus._alive.queues[queue] <= time.monotonic() + 3 / 3
        await eventually(lambda: _live_for_at_most(redis, queue, 3))


async def test_BQ_25_options_of_consume_each_alone(bus: Bus) -> None:
    queue = await attached(bus, *"abcdef")
    assert await take(queue, 6, remove=False) == [(number, b"%c" % (96 + number)) for number in range(1, 7)]
    assert (await take(queue, 4, remove=False, start=2))[0] == (3, b"c")
    assert await take(queue, 3, limit=2) == [(1, b"a"), (2, b"b")]
    assert await take(queue, 2, limit=None) == [(3, b"c"), (4, b"d")]
    assert await take(queue, 1, limit=0) == []
    assert await take(queue, 2, reliable=True) == [(5, b"e"), (6, b"f")]
    assert await take(queue, 1, reliable=True, after_id=5) == [(6, b"f")]


async def test_BQ_25_a_second_consume_gets_the_one_that_runs_or_is_refused(bus: Bus) -> None:
    queue = await attached(bus)
    events = heard(queue)
    first = await queue.consume()
    assert await queue.consume() is first
    for options in ({"limit": 1}, {"reliable": True}, {"prefetch": 1}):
        with pytest.raises(WrongCall, match=r"other options \("):
            queue.consume(**options)
    await queue.push_many([*"ab"])
    await eventually(lambda: queue.consumed == 2)
    assert [each[0] for each in events] == ["consuming", "message", "message"]


async def test_BQ_25_consume_before_attach_waits_for_it(bus: Bus) -> None:
    queue = bus.queue("foo")
    events = heard(queue)
    consuming = asyncio.ensure_future(_started(queue))
    pushed = queue.push("x")
    await asyncio.sleep(0.05)  # timing: nothing may happen
    assert not events
    await queue.attach()
    await consuming
    assert await pushed == 1
    await eventually(lambda: queue.consumed == 1)
    kinds = [each[0] for each in events if each[0] != "drain"]
    assert kinds == ["attaching", "consuming", "attached", "message"]


async def test_BQ_32_a_closed_queue_can_be_attached_anew(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, *"abc")
    await take(queue, 1, reliable=True)
    await queue.close()
    assert await redis.keys("*") == []
    for call in (queue.close(), queue.ack(1)):
        with pytest.raises(WrongCall):
            await call
    with pytest.raises(Gone):
        await queue.push("x")
    assert await queue.attach() is False
    assert await queue.push("x") == 1


async def test_BQ_33_flush_empties_the_queue_and_what_is_not_acknowledged(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, *"abc")
    await take(queue, 1, reliable=True)
    await queue.flush()
    assert await queue.count() == 0
    assert not await redis.exists(*queue.keys[1::2])
    assert await queue.push("d") == 4
    assert await take(queue, 1, reliable=True) == [(4, b"d")]


async def test_BQ_34_values_before_attach_after_it_and_of_a_queue_that_does_not_exist(bus: Bus) -> None:
    async def values(queue: Queue) -> tuple[Any, ...]:
        calls = (queue.exists(), queue.count(), queue.ttl(), queue.maxsize(), queue.find())
        return (queue.is_attached, queue.is_consuming, queue.pushed, queue.consumed, *await asyncio.gather(*calls))

    queue = bus.queue("foo")
    assert await values(queue) == (False, False, 0, 0, False, 0, None, None, None)
    assert await queue.metadata() == {}
    assert await queue.get_metadata("ttl") is None
    with pytest.raises(Gone):
        await queue.set_metadata({"a": "b"})
    await queue.flush()
    await queue.attach(ttl=9, maxsize=5)
    await queue.push_many([*"abc"])
    assert await values(queue) == (True, False, 3, 0, True, 3, 9, 5, "local")
    await queue.consume(limit=2)
    await eventually(lambda: queue.consumed == 2)
    assert await values(bus.queue("foo")) == (False, False, 0, 0, True, 1, 9, 5, "local")
    await queue.detach()
    assert await values(queue) == (False, False, 3, 2, True, 1, 9, 5, "local")


async def test_BQ_35_a_ttl_that_is_none_is_refused_and_changes_nothing(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, ttl=9)
    for value in ("abc", 0, -1, ""):
        with pytest.raises(WrongCall, match="ttl"):
            await queue.set_metadata({"ttl": value, "a": "b"})
    assert await queue.get_metadata("a") is None
    await queue.set_metadata({})
    assert 0 < await redis.ttl(queue.keys[0]) <= 9


async def test_BQ_36_the_events_of_a_life_in_order(bus: Bus) -> None:
    queue = bus.queue("foo")
    events = heard(queue)
    await queue.attach()
    await queue.push("a")
    await eventually(lambda: events[-1] == ("drain",))
    await queue.consume()
    await eventually(lambda: queue.consumed == 1)
    await queue.stop()
    await queue.consume(reliable=True)
    await queue.detach()
    await queue.attach()
    await queue.consume(remove=False)
    await queue.close()
    shown = [
        (event, *(bytes(each) if isinstance(each, Message) else each for each in values)) for event, *values in events
    ]
    assert shown == [
        ("attaching",),
        ("attached", False),
        ("drain",),
        ("consuming", True),
        ("message", b"a"),
        ("consuming", False),
        ("consuming", True),
        ("detaching",),
        ("consuming", False),
        ("detached",),
        ("attaching",),
        ("attached", True),
        ("consuming", True),
        ("detaching",),
        ("consuming", False),
        ("detached",),
        ("closed",),
    ]


async def test_BQ_36_handlers_once_off_and_those_that_fail(bus: Bus) -> None:
    queue, got = await attached(bus), list[str]()

    def fail(_: Message) -> None:
        got.append("failed")
        raise ValueError("on purpose")

    async def fail_later(_: Message) -> None:
        got.append("failed later")
        raise ValueError("on purpose")

    def gone(_: Message) -> None:
        got.append("gone")

    queue.on("message", fail)
    queue.on("message", fail_later)
    queue.once("message", lambda _: got.append("once"))
    queue.on("message", gone)
    queue.off("message", gone)
    await queue.consume()
    await queue.push_many([*"ab"])
    await eventually(lambda: queue.consumed == 2 and len(got) == 5)
    assert got == ["failed", "failed later", "once", "failed", "failed later"]
    assert queue.is_consuming


async def test_BQ_38_one_push_and_one_pop_are_one_call_each_and_so_are_500(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, "first", "second", ttl=3_600)
    await take(queue, 1, reliable=True)
    await queue.ack(1)
    await take(queue, 1)  # the server knows the scripts now
    before = await settled(redis)
    await queue.push("x")
    assert await calls(redis) == before + 1
    await asyncio.gather(*(queue.push("x") for _ in range(499)))
    assert await calls(redis) == before + 3  # the first at once, the others together
    await queue.push_many(["x"] * 500)
    assert await calls(redis) == before + 4
    assert len(await take(queue, 1_000)) == 1_000
    assert await calls(redis) <= before + 4 + 12  # 1, 2, 4, ... 256, 489 at once
    await asyncio.gather(*(queue.ack(number) for number in range(100)))
    assert await calls(redis) <= before + 3 + 12 + 1


async def test_a_thousand_idle_queues_cost_under_20_calls_in_a_third_of_their_ttl(bus: Bus, redis: "Redis") -> None:
    queues = [bus.queue(f"q{number}") for number in range(1_000)]
    await asyncio.gather(*(each.attach(ttl=3_600) for each in queues))
    await asyncio.gather(*(each.consume() for each in queues[:500]))
    before, now = await settled(redis), time.monotonic()
    for place, each in enumerate(queues):
        await redis.expire(each.keys[0], 7_200)
        bus._alive.queues[each] = now + place / 5  # their turns come in 200 s, a sixth of their interval
    bus._alive._wake.set()
    await eventually(lambda: _live_for_at_most(redis, queues[-1], 3_600, many=1))
    assert 4 <= await settled(redis) - before < 20
    assert max([await redis.ttl(each.keys[0]) for each in queues[::50]]) <= 3_600


async def _started(queue: Queue) -> None:
    await queue.consume()


async def _no_keys(redis: "Redis") -> bool:
    return await redis.keys("*") == []


async def _live_for_at_most(redis: "Redis", queue: Queue, seconds: int, many: int = 4) -> bool:
    """Return whether the first keys of a queue have an expiry of its ttl, as they have once it was kept alive."""
    return all([0 < await redis.ttl(key) <= seconds for key in queue.keys[:many]])
