"""Defects of busmq that must not occur here, of queues: BQ-D05 to BQ-D14, and BQ-D28 of the inventory, by number.

D15 to D20, D30 and D31 are in test_defects_objects.py, D01 to D04 and D27, of several servers, in test_servers.py, D29
in test_waking.py; D21 to D26 are the gateway's.
"""

import asyncio

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Fenced, Gone, Occupied, WrongCall
from penstock.bus import Bus, Message
from tests.bus.given import attached, calls, heard, keep_alive, settled, take
from tests.support.harness import eventually


async def test_BQ_D06_a_second_consumer_that_is_refused_takes_nothing(bus: Bus, redis: "Redis") -> None:
    queue, other = await attached(bus, *"abc"), await attached(bus)
    queue.on("message", lambda _: None)
    await queue.consume(reliable=True, exclusive=True)
    await eventually(lambda: queue.consumed == 3)
    for options in ({"exclusive": True}, {"exclusive": True, "after_id": 3}, {"after_id": 3}, {}):
        with pytest.raises(Occupied, match=r"^bus:queue:foo:consumer: another consumer has the queue for \d+ s more"):
            await other.consume(reliable=True, **options)
    assert await redis.lrange(queue.keys[3], 0, -1) == [b"1", b"a", b"2", b"b", b"3", b"c"]


async def test_BQ_D06_a_consumer_whose_lease_has_ended_is_told_and_robs_nobody(bus: Bus, redis: "Redis") -> None:
    first, second = await attached(bus, *"ab"), await attached(bus)
    consumption = first.consume(reliable=True, exclusive=True, prefetch=1)
    assert await consumption.fetch()
    assert consumption.next_taken()
    await redis.delete(first.lease)  # as after a pause that was longer than the lease
    assert await take(second, 1, reliable=True, exclusive=True, prefetch=1) == [(1, b"a")]
    again = second.consume(reliable=True, exclusive=True, after_id=1, prefetch=1)
    assert await again.fetch()
    with pytest.raises(Fenced):
        await first.ack(2)
    with pytest.raises(Fenced):
        await consumption.fetch()
    assert await redis.lrange(first.keys[3], 0, -1) == [b"2", b"b"]


async def test_BQ_D06_an_ack_is_fenced_after_the_consumption_has_ended(bus: Bus, redis: "Redis") -> None:
    first, second = await attached(bus, *"ab"), await attached(bus)
    consumption = first.consume(reliable=True, exclusive=True)
    assert await consumption.fetch()
    message = consumption.next_taken()
    assert message
    await redis.delete(first.lease)  # as after a pause that was longer than the lease
    other = second.consume(reliable=True, exclusive=True)
    assert await other.fetch()
    await first.stop()
    for ack in (message.ack, lambda: first.ack(1)):
        with pytest.raises(Fenced):
            await ack()
    await second.stop()
    with pytest.raises(Fenced):  # the lease is free, but was another's meanwhile
        await message.ack()
    third = second.consume(reliable=True, exclusive=True)
    assert await third.fetch()
    again = third.next_taken()
    assert again
    await second.stop()
    await again.ack()  # nobody else had it
    assert not await redis.exists(first.keys[3])


async def test_BQ_D06_an_ack_is_fenced_if_another_had_the_queue_meanwhile(bus: Bus, redis: "Redis") -> None:
    """The first one was away for longer than its lease, and the other one has died: nobody has noticed either."""
    first, second = await attached(bus, *"ab"), await attached(bus)
    consumption, other = [each.consume(reliable=True, exclusive=True, prefetch=1) for each in (first, second)]
    assert await consumption.fetch()
    message = consumption.next_taken()
    assert message
    await redis.delete(first.lease)
    assert await other.fetch()
    await redis.delete(first.lease)
    with pytest.raises(Fenced):
        await message.ack()
    assert await redis.lrange(first.keys.toack, 0, -1) == [b"1", b"a"]


async def test_an_ack_of_what_is_no_id_is_refused_and_stops_no_other(bus: Bus) -> None:
    queue = await attached(bus, *"ab")
    await take(queue, 2, reliable=True)
    first = queue.ack(1)
    for bad in ("5", None, -1, 1.5, 2**60):
        with pytest.raises(WrongCall, match="id"):
            queue.ack(bad)  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        await first
        await queue.ack(2)


async def test_BQ_D10_of_clients_that_attach_at_once_one_creates_and_all_agree(bus: Bus, redis_url: str) -> None:
    async with Bus(redis_url) as second:
        for round_ in range(20):
            queues = [each.queue(f"q{round_}") for each in (bus, second) for _ in range(3)]
            existed = await asyncio.gather(*(each.attach(ttl=10 + place) for place, each in enumerate(queues)))
            assert sorted(existed) == [False, True, True, True, True, True]
            assert {each.seconds for each in queues} == {10 + existed.index(False)}


async def test_BQ_D10_a_queue_is_created_with_its_expiry_at_once(bus: Bus, redis: "Redis") -> None:
    await attached(bus, name="other")  # the server knows the script now
    await redis.config_resetstat()
    await attached(bus, ttl=9)
    assert await calls(redis) == 1
    assert 0 < await redis.ttl("bus:queue:foo:metadata") <= 9


async def test_BQ_D12_everybody_hears_that_a_queue_was_closed_and_no_push_creates_a_headless_one(
    bus: Bus, redis: "Redis", redis_url: str
) -> None:
    queue = await attached(bus, *"abc")
    async with Bus(redis_url) as second:
        other = await attached(second)
        events = heard(other)
        await other.consume(reliable=True)
        late = await attached(second)
        await queue.close()
        with pytest.raises(Gone):
            await late.push("x")  # whether or not it has heard of it yet
        await eventually(lambda: ("consuming", False) in events)
        assert events.count(("closed",)) == 1
        assert not other.is_attached
        assert await redis.keys("bus:*") == []
        assert await other.attach() is False
        assert await other.push("y") == 1


async def test_BQ_D12_a_queue_attached_anew_is_not_closed_by_the_note_of_its_former_end(bus: Bus) -> None:
    queue = await attached(bus)
    for _ in range(50):
        events = heard(queue)
        await queue.close()
        await queue.attach()
        await queue.push("x")
        await bus.pubsub("round trip").publish("x")
        assert queue.is_attached
        assert events.count(("closed",)) == 1
        for event in queue.EVENTS:
            queue.off(event)


async def test_BQ_D12_a_queue_destroyed_by_busmq_is_noticed_by_the_next_push(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus, "a")
    events = heard(queue)
    await redis.delete(*queue.keys)
    with pytest.raises(Gone):
        await queue.push("x")
    assert ("closed",) in events
    assert await redis.keys("bus:*") == []


async def test_BQ_D13_a_message_under_way_when_a_consumer_stops_is_not_lost(bus: Bus) -> None:
    queue, taken = await attached(bus), list[int]()
    queue.on("message", lambda message: taken.append(message.id))
    for number in range(1, 101):
        await queue.consume()
        await asyncio.gather(queue.push("x"), queue.stop())
        assert len(taken) + await queue.count() == number
    await queue.consume()
    await eventually(lambda: taken == [*range(1, 101)])


async def test_BQ_D13_nothing_is_handed_out_after_stop(bus: Bus) -> None:
    queue = await attached(bus, *map(str, range(1_000)))
    taken = list[int]()

    async def handle(message: Message) -> None:
        taken.append(message.id)
        if message.id == 300:
            await queue.stop()

    queue.on("message", handle)
    await queue.consume()
    await eventually(lambda: not queue.is_consuming)
    assert taken == [*range(1, 301)]
    assert await queue.count() == 700


async def test_BQ_D14_falsy_values_are_set_and_read_attached_or_not(bus: Bus, redis_url: str) -> None:
    queue = await attached(bus)
    for value, text in ((0, "0"), (False, "false"), ("", ""), (b"\xff", "\udcff")):
        await queue.set_metadata({"k": value})
        assert await queue.get_metadata("k") == text
    await queue.set_metadata({"a": 0, "b": ""})
    assert await queue.get_metadata("none") is None
    async with Bus(redis_url) as second:
        other = second.queue("foo")
        assert (await other.get_metadata("a"), await other.get_metadata("b")) == ("0", "")
        await other.set_metadata({"a": False})
    assert await queue.get_metadata("a") == "false"


async def test_BQ_D28_two_calls_of_attach_are_one(bus: Bus, redis: "Redis") -> None:
    queue = bus.queue("foo")
    events = heard(queue)
    assert [*await asyncio.gather(queue.attach(ttl=3_600), queue.attach(ttl=3_600))] == [False, False]
    assert events == [("attaching",), ("attached", False)]
    for calls_of_a_turn in (range(1, 3), range(1, 2)):  # the server may have to learn the script first
        await redis.config_resetstat()
        keep_alive(bus)
        await eventually(lambda: calls(redis))
        assert await settled(redis) in calls_of_a_turn
