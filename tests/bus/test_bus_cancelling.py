"""A loop over messages that is cancelled at any moment, twice, or stopped, loses nothing and leaves nothing behind."""

import asyncio
import gc
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Unavailable, WrongCall
from penstock.bus import Bus, Queue
from penstock.bus.waker import wakers_of
from tests.bus.given import attached, take
from tests.support.harness import eventually

MANY = 60
MODES: dict[str, dict[str, Any]] = {
    "taken": {},
    "reliable": {"reliable": True},
    "exclusive": {"reliable": True, "exclusive": True},
    "read": {"remove": False},
}


async def turns(many: int) -> None:
    for _ in range(many):
        await asyncio.sleep(0)


async def consume(queue: Queue, taken: list[bytes], **options: Any) -> None:
    async for message in queue.consume(**options):
        taken.append(message.body)
        await asyncio.sleep(0)
        if options.get("reliable"):
            await message.ack()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
async def test_a_loop_cancelled_at_each_point_loses_nothing(
    bus: Bus, redis: "Redis", mode: str, *, again: bool
) -> None:
    sent, taken = list[bytes](), list[bytes]()
    producer, queue = await attached(bus), await attached(bus)
    for point in range(MANY):
        bodies = [b"%d.%d" % (point, place) for place in range(5)]
        await producer.push_many(bodies)
        sent += bodies
        loop = asyncio.ensure_future(consume(queue, taken, **MODES[mode]))
        await turns(point)
        if point % 3:
            await asyncio.sleep(0.001 * (point % 7))
        loop.cancel()
        if again:
            await turns(point % 4)
            loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await queue.stop()
        if mode == "read":
            assert taken == sent[: len(taken)]
            taken.clear()
    if mode != "read":
        left = await producer.count()
        toack = await redis.lrange(queue.keys[3], 0, -1)
        rest = await take(queue, left + len(toack) // 2, **MODES[mode]) if left or toack else []
        assert left + len(toack) < len(sent)
        taken += [body for _, body in rest]
        if mode == "taken":
            assert taken == sent
        else:  # those that were handed out and not acknowledged come again
            assert [*dict.fromkeys(taken)] == sent
    assert await producer.count() == (len(sent) if mode == "read" else 0)
    assert not wakers_of(queue.instance)
    assert not await redis.exists(queue.lease)
    await eventually(lambda: nobody_listens(redis, queue.available))


@pytest.mark.parametrize("mode", MODES)
async def test_a_loop_stopped_while_it_begins_leaves_nothing_behind(bus: Bus, redis: "Redis", mode: str) -> None:
    for point in range(1, 25):
        queue, taken = await attached(bus, name=f"q{point}"), list[bytes]()
        loop = asyncio.ensure_future(consume(queue, taken, **MODES[mode]))
        await turns(point)
        async with asyncio.timeout(30):
            await queue.stop()
            await loop
        assert not queue.is_consuming
        assert not queue.consumptions
        assert not await redis.exists(queue.lease)
        await eventually(lambda queue=queue: nobody_listens(redis, queue.available))  # type: ignore[misc]


async def test_stop_ends_a_loop_that_waits_for_attach(bus: Bus) -> None:
    queue = bus.queue("foo")
    loop = asyncio.ensure_future(consume(queue, []))
    await turns(5)
    async with asyncio.timeout(30):
        await queue.stop()
        await loop
    await queue.attach()
    await queue.push("x")
    assert await take(queue, 1) == [(1, b"x")]


async def test_more_than_a_script_is_sent_at_once_goes_back_in_order(bus: Bus) -> None:
    bodies = [b"%d" % number for number in range(9_000)]
    queue = await attached(bus, *bodies)
    async for _ in queue.consume(prefetch=9_000):
        if queue.consumed > 4_100:  # the batch in hand has 4,096
            break
    await queue.stop()
    assert await queue.count() == 9_000 - queue.consumed
    rest = await take(queue, 9_000 - queue.consumed)
    assert [body for _, body in rest] == bodies[4_101:]


async def test_two_loops_over_one_object_are_refused(bus: Bus) -> None:
    queue = await attached(bus, "a")
    async for _ in queue.consume():
        with pytest.raises(WrongCall, match="another loop"):
            await anext(aiter(queue.consume()))
        break
    await queue.stop()


async def test_a_cancelled_call_of_fetch_can_be_called_again(bus: Bus) -> None:
    queue = await attached(bus)
    consumption = queue.consume()
    for number in range(1, 20):
        waiting = asyncio.ensure_future(consumption.fetch())
        await turns(number)
        await queue.push(str(number))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(30):
            while (message := consumption.next_taken()) is None:
                assert await consumption.fetch()
        assert message.id == number
    await queue.stop()


async def nobody_listens(redis: "Redis", channel: bytes) -> bool:
    return bool((await redis.pubsub_numsub(channel))[0][1] == 0)


@pytest.mark.parametrize("mode", [{}, {"reliable": True, "exclusive": True}, {"remove": False}], ids=str)
async def test_a_loop_may_follow_one_that_was_left(bus: Bus, mode: dict[str, Any]) -> None:
    queue, got = await attached(bus, *"abcdef"), list[bytes]()
    for _ in range(3):
        async for message in queue.consume(**mode):
            got.append(message.body)
            if mode.get("reliable"):
                await message.ack()
            break
    assert got == ([b"a"] * 3 if "remove" in mode else [b"a", b"b", b"c"])


async def test_what_is_detached_or_cancelled_while_it_attaches_is_not_attached_later(bus: Bus, redis: "Redis") -> None:
    queue, other = bus.queue("foo"), bus.queue("bar")
    await redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    attaching = [asyncio.ensure_future(each.attach()) for each in (queue, other, other)]
    await asyncio.sleep(0)
    attaching[1].cancel()
    detaching = asyncio.ensure_future(queue.detach())
    await asyncio.sleep(0)
    await redis.execute_command("CLIENT", "UNPAUSE")
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable):
            await attaching[0]
        await detaching
        assert await attaching[2] is False
    assert (queue.is_attached, other.is_attached) == (False, True)
    third = bus.queue("third")
    attaching = [asyncio.ensure_future(third.attach())]
    await asyncio.sleep(0)
    attaching[0].cancel()
    await asyncio.gather(*attaching, return_exceptions=True)
    await bus.queue("fourth").attach()
    assert not third.is_attached


async def test_an_attach_that_is_given_up_is_not_reported_by_asyncio_as_an_error(bus: Bus) -> None:
    reported = list[dict[str, Any]]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    attaching = asyncio.ensure_future(bus.queue("foo").attach())
    await asyncio.sleep(0)
    attaching.cancel()
    await asyncio.gather(attaching, return_exceptions=True)
    await bus.queue("bar").attach()
    del attaching
    gc.collect()
    assert not reported
