"""Consumption of a queue goes on, in order, when replies are lost, ids begin anew or a lease has ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from penstock.bus import Bus, Message, Queue
from penstock.bus.scripts import POP, RESTORE
from tests.bus.given import attached

KEYS = [f"bus:queue:foo:{each}" for each in ("metadata", "messages", "msgid", "toack")]
METADATA, MESSAGES, TOACK = KEYS[0], KEYS[1], KEYS[3]


@asynccontextmanager
async def handling(
    queue: Queue, *, reliable: bool = False, remove: bool = True
) -> AsyncIterator[list[tuple[int, bytes]]]:
    """Consume in the background, and yield the list of what was handled."""
    handled = list[tuple[int, bytes]]()

    async def handle(message: Message) -> None:
        handled.append((message.id, message.body))

    queue.on("message", handle)
    await queue.consume(reliable=reliable, remove=remove)
    yield handled
    await queue.stop()


async def until_handled(handled: list[tuple[int, bytes]], *expected: tuple[int, bytes]) -> None:
    async with asyncio.timeout(30):
        while len(handled) < len(expected):
            await asyncio.sleep(0.01)
    assert handled == [*expected]


async def test_messages_are_heard_of_though_ids_begin_anew_without_a_word(
    bus: Bus, redis: "Redis", redis_url: str
) -> None:
    """As when a Node client closes the queue, and another one attaches to it."""
    queue = await attached(bus, "a", "b", "c")
    async with handling(queue) as handled, Bus(redis_url) as second:
        await until_handled(handled, (1, b"a"), (2, b"b"), (3, b"c"))
        await redis.delete(*KEYS)
        other = second.queue("foo")
        await other.attach()
        for number, body in enumerate((b"d", b"e", b"f"), start=1):
            handled.clear()
            await other.push(body)
            await until_handled(handled, (number, body))


async def test_a_reader_begins_anew_with_ids_that_pass_the_last_that_it_has_read(
    bus: Bus, redis: "Redis", redis_url: str
) -> None:
    """The messages that it has read were taken; only the last id of those that are pushed together is announced."""
    queue = await attached(bus, "a", "b")
    async with handling(queue, remove=False) as handled, Bus(redis_url) as second:
        await until_handled(handled, (1, b"a"), (2, b"b"))
        handled.clear()
        await redis.delete(*KEYS)
        await attached(second, *"cdef")
        await until_handled(handled, (1, b"c"), (2, b"d"), (3, b"e"), (4, b"f"))


async def test_a_late_command_of_the_same_consumer_takes_nothing(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, "a", "b")
    async with handling(queue, reliable=True) as handled:
        await until_handled(handled, (1, b"a"), (2, b"b"))
        late: dict[str, Any] = {"metadata": METADATA, "messages": MESSAGES, "toack": TOACK, "who": "late"}
        late |= {"seconds": 10, "ttl": 30, "most": 5, "bytes": 100}
        assert await POP(redis, **late, last=0) == [-1]


async def test_what_an_exclusive_consumer_took_before_its_lease_ended_is_taken_anew(bus: Bus, redis: "Redis") -> None:
    """Another one had the queue meanwhile, handled some, and has left."""
    queue, handled = await attached(bus, *"abcdef"), list[int]()
    async for message in queue.consume(reliable=True, exclusive=True):
        handled.append(message.id)
        consumption = queue.consumptions[0]
        if message.id == 4:  # and the others have been taken with it
            assert await redis.llen(MESSAGES) == 0
            await redis.delete(queue.lease)
            other = {
                "metadata": METADATA,
                "toack": TOACK,
                "messages": MESSAGES,
                "lease": queue.lease,
                "who": "other",
                "seconds": 0,
                "ttl": 30,
            }
            await RESTORE(redis, **other, first=1, most=100, channel=queue.available)
            assert await redis.lpop(MESSAGES, 10) == [b"%c" % each for each in b"1a2b3c4d5e"]
            consumption.claim.note_lease(since=0)
        if message.id == 6:
            break
    await queue.stop()
    assert handled == [1, 2, 3, 4, 6]


async def test_what_a_late_restore_has_put_back_is_acknowledged_as_well(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, *"abc")
    consumption = queue.consume(reliable=True, exclusive=True)
    handed = list[Message | None]()
    for _ in range(2):  # the second call takes two
        assert await consumption.fetch()
        handed.append(consumption.next_taken())
    first, second = handed
    assert first
    assert second
    await _restore(redis, queue, consumption.claim.who)
    await first.ack()
    assert await redis.lrange(MESSAGES, 0, -1) == [b"2", b"b", b"3", b"c"]
    await queue.ack(3)  # which was not handed out
    assert await redis.lrange(MESSAGES, 0, -1) == [b"3", b"c"]


async def test_an_ack_takes_no_message_whose_id_a_server_that_had_lost_some_gives_again(
    bus: Bus, redis: "Redis"
) -> None:
    """As after a failover to a replica that had only the first two of them, one handed out and one not."""
    queue = await attached(bus, *"abcd")
    consumption = queue.consume(reliable=True, exclusive=True)
    assert await consumption.fetch()
    while message := consumption.next_taken() or (await consumption.fetch() and consumption.next_taken()):
        last = message
        if last.id == 4:
            break
    await redis.delete(MESSAGES, TOACK)
    await redis.set(KEYS[2], 2)
    await redis.rpush(TOACK, "1", "a", "2", "b")
    await _restore(redis, queue, consumption.claim.who, many=2)
    assert await queue.push_many(["new c", "new d"]) == [3, 4]
    await last.ack()
    assert await redis.lrange(MESSAGES, 0, -1) == [b"3", b"new c", b"4", b"new d"]


async def test_an_ack_takes_no_message_of_a_queue_that_was_created_anew(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, *"abc")
    consumption = queue.consume(reliable=True, exclusive=True)
    assert await consumption.fetch()
    while message := consumption.next_taken():
        last = message
    await redis.delete(*KEYS)
    await redis.hset(METADATA, mapping={"ttl": "30", "source": "local"})
    await redis.rpush(MESSAGES, "1", "d", "2", "e")
    await last.ack()
    assert await redis.lrange(MESSAGES, 0, -1) == [b"1", b"d", b"2", b"e"]


async def _restore(redis: "Redis", queue: Queue, who: str, *, many: int = 3) -> None:
    """Do what a call of the consumer that has begun does if it arrives late."""
    metadata, messages, _, toack = queue.keys
    named: dict[str, Any] = {"metadata": metadata, "messages": messages, "toack": toack, "lease": queue.lease}
    named |= {"who": who, "seconds": 10, "first": 1, "ttl": 30, "most": 100, "channel": "nobody"}
    assert await RESTORE(redis, **named) == many


async def test_a_handler_of_drain_may_push(bus: Bus) -> None:
    queue, later = await attached(bus), list["asyncio.Future[int]"]()
    queue.once("drain", lambda: later.append(queue.push("b")))
    assert await queue.push("a") == 1
    async with asyncio.timeout(30):
        assert await later[0] == 2
