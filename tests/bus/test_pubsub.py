"""Topics: BQ-60."""

import asyncio

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Unconfirmed
from penstock.bus import Bus
from tests.bus.given import blocked, heard, replies_lost
from tests.support.harness import eventually


async def test_BQ_60_all_who_listen_get_each_message_and_only_then(bus: Bus, redis_url: str) -> None:
    async with Bus(redis_url) as second:
        topics = [bus.pubsub("news"), bus.pubsub("news"), second.pubsub("news")]
        events = [heard(each) for each in topics]
        assert await topics[0].publish("early") == 0
        for each in topics:
            await each.subscribe()
            await each.subscribe()
        assert await topics[0].publish("ü") == 2  # buses
        assert await second.pubsub("news").publish({"a": 1}, json=True) == 2
        assert await bus.pubsub("new").publish("other topic") == 0
        await eventually(lambda: all(len(each) == 3 for each in events))
        await topics[0].unsubscribe()
        await topics[0].unsubscribe()
        await topics[1].publish(b"\xff")
        await eventually(lambda: len(events[1]) == len(events[2]) == 4)
        got = [("message", "ü".encode()), ("message", b'{"a":1}')]
        assert events[0] == [("subscribed",), *got, ("unsubscribed",)]
        assert events[1] == events[2] == [("subscribed",), *got, ("message", b"\xff")]


async def test_BQ_60_subscriptions_last_over_a_lost_connection_and_end_with_the_last_listener(
    bus: Bus, redis: "Redis"
) -> None:
    first, second = bus.pubsub("news"), bus.pubsub("news")
    got = list[bytes]()
    for each in (first, second):
        each.on("message", got.append)
        await each.subscribe()
    assert first.is_subscribed
    bus.first.subscriber.end(ConnectionError("cut"))
    assert not first.is_subscribed
    await eventually(lambda: first.is_subscribed and second.is_subscribed)
    assert await _listeners(redis, 1)
    await first.publish("x")
    await eventually(lambda: got == [b"x", b"x"])
    await first.unsubscribe()
    assert await _listeners(redis, 1)
    await second.unsubscribe()
    await eventually(lambda: _listeners(redis, 0))


async def test_a_message_whose_reply_is_lost_is_not_published_again(bus: Bus, redis: "Redis") -> None:
    async with replies_lost(redis):
        sending = asyncio.ensure_future(bus.pubsub("news").publish("x"))
        await eventually(lambda: blocked(redis))
    with pytest.raises(Unconfirmed):
        await sending
    assert await bus.pubsub("news").publish("y") == 0


async def _listeners(redis: "Redis", many: int) -> bool:
    return bool((await redis.pubsub_numsub("bus:pubsub:news"))[0][1] == many)
