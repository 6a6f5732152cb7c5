"""BQ-D29: who is woken by a message, and what that costs in calls."""

import asyncio
from collections import Counter

from redis.asyncio import Redis

from penstock.bus import Bus, Message
from tests.bus.given import attached, calls, settled, take
from tests.support.harness import eventually

MANY = 20


async def test_BQ_D29_an_idle_consumer_sends_nothing_and_a_message_costs_one_push_and_one_pop(
    bus: Bus, redis: "Redis"
) -> None:
    queue = await attached(bus, "first", ttl=3_600)
    await take(queue, 1)  # the server knows the scripts now
    await queue.consume()
    before = await settled(redis)
    await asyncio.sleep(0.5)  # timing: nothing may happen
    assert await calls(redis) == before
    for number in range(1, 11):
        await queue.push("x")
        await eventually(lambda number=number: queue.consumed == number + 1)  # type: ignore[misc]  # no type for a default
    assert await settled(redis) - before <= 2 * 10 + 1


async def test_BQ_D29_a_message_wakes_one_of_all_consumers_of_a_bus(bus: Bus, redis: "Redis") -> None:
    queues = [await attached(bus, ttl=3_600) for _ in range(MANY)]
    await queues[0].push("first")
    await take(queues[0], 1)  # the server knows the scripts now
    await asyncio.gather(*(each.consume() for each in queues))
    before = await settled(redis)
    for number in range(1, 11):
        await queues[0].push("x")
        await eventually(lambda number=number: sum(each.consumed for each in queues) == number + 1)  # type: ignore[misc]
    assert await settled(redis) - before <= 2 * 10 + 1


async def test_messages_that_remain_wake_the_next_consumer_while_one_is_busy(bus: Bus) -> None:
    producer, goes_on, counts = await attached(bus), asyncio.Event(), Counter[int]()
    for number in range(3):
        queue = await attached(bus)

        async def handle(_: Message, number: int = number) -> None:
            counts[number] += 1
            await goes_on.wait()

        queue.on("message", handle)
        await queue.consume(prefetch=1)
    await producer.push_many([*"abcd"])
    await eventually(lambda: counts == {0: 1, 1: 1, 2: 1})
    goes_on.set()
    await eventually(lambda: sum(counts.values()) == 4)


async def test_a_message_is_passed_on_when_the_consumer_that_was_woken_stops(bus: Bus) -> None:
    for _ in range(50):
        first, second = await attached(bus), await attached(bus)
        await first.consume()
        await second.consume()
        await asyncio.gather(first.push("x"), first.stop())
        await eventually(lambda: first.consumed + second.consumed == 1)  # noqa: B023  # runs before the next round
        await second.stop()


async def test_each_reader_hears_of_each_message(bus: Bus) -> None:
    queues = [await attached(bus) for _ in range(3)]
    reading = [asyncio.ensure_future(take(each, 2, remove=False)) for each in queues]
    await eventually(lambda: all(each.is_consuming for each in queues))
    await queues[0].push("a")
    await eventually(lambda: all(each.consumed == 1 for each in queues))
    await queues[0].push("b")
    assert await asyncio.gather(*reading) == [[(1, b"a"), (2, b"b")]] * 3


async def test_a_consumer_goes_on_when_another_client_destroys_the_queue_and_creates_it_anew(
    bus: Bus, redis: "Redis"
) -> None:
    """As busmq does, which tells nobody: ids begin anew, so an id that was taken before is a new message."""
    queue = await attached(bus, *"abcdef")
    await queue.consume()
    await eventually(lambda: queue.consumed == 6)
    await queue.push("g")
    await eventually(lambda: queue.consumed == 7)
    async with redis.pipeline() as transaction:
        transaction.delete(*queue.keys)
        transaction.hset("bus:queue:foo:metadata", mapping={"ttl": 30, "source": "local"})
        await transaction.execute()
    assert await queue.push("again") == 1
    await eventually(lambda: queue.consumed == 8)
