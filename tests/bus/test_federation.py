"""Objects here and of another site, which have the same methods: by our gateway, and by Node's federation server."""

import asyncio
import dataclasses
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Full, Gone, WrongCall
from penstock.bus import Bus, Message
from tests.bus.given import take
from tests.bus.sites import Site
from tests.support.harness import eventually


async def test_a_queue_has_the_same_methods_everywhere(site: Site, redis: "Redis") -> None:
    queue = site.queue()
    assert await queue.attach(ttl=20, maxsize=5) is False
    assert queue.is_attached
    assert await queue.push("a") == 1
    assert await queue.push_many(["b", "ü", '{"x":1}']) == [2, 3, 4]
    assert await queue.push([None], json=True) == 5
    assert await queue.count() == 5
    assert await take(queue, 3) == [(1, b"a"), (2, b"b"), (3, "ü".encode())]
    assert (queue.pushed, queue.consumed, queue.is_consuming) == (5, 3, False)
    assert await queue.ttl() == 20
    assert await queue.maxsize() == 5
    assert await queue.exists() is True
    assert await queue.find() == "local"
    await queue.set_metadata({"owner": "us"})
    assert await queue.get_metadata("owner") == "us"
    assert (await queue.metadata())["owner"] == "us"
    await queue.flush()
    assert await queue.count() == 0
    await queue.detach()
    assert not queue.is_attached
    assert await redis.exists("bus:queue:foo:metadata")


async def test_a_closed_queue_is_gone(site: Site, redis: "Redis") -> None:
    queue, closed = site.queue(), list[str]()
    queue.on("closed", lambda: closed.append("closed"))
    await queue.attach()
    await queue.push("a")
    await queue.close()
    assert closed == ["closed"]
    assert not await redis.keys("bus:queue:foo:*")
    with pytest.raises(Gone):
        await queue.push("b")


async def test_reliable_messages_come_until_they_are_acknowledged(site: Site, redis: "Redis") -> None:
    queue = site.queue()
    await queue.attach()
    await queue.push_many([*"abc"])
    async for message in queue.consume(reliable=True):
        if message.id == 2:
            await message.ack()
        if message.id == 3:
            break
    await queue.stop()
    await eventually(lambda: redis.llen("bus:queue:foo:toack"))
    await eventually(lambda: _acknowledged(redis))
    assert await take(queue, 1, reliable=True) == [(3, b"c")]


async def _acknowledged(redis: "Redis") -> bool:
    return [*await redis.lrange("bus:queue:foo:toack", 0, -1)][:1] in ([b"3"], [])


async def test_messages_are_read_from_an_index_and_stay(site: Site) -> None:
    queue = site.queue()
    await queue.attach()
    await queue.push_many([*"abcd"])
    assert await take(queue, 3, remove=False, start=1) == [(2, b"b"), (3, b"c"), (4, b"d")]
    assert await queue.count() == 4


async def test_messages_are_read_from_behind_an_id_and_stay(site: Site) -> None:
    queue = site.queue()
    await queue.attach()
    await queue.push_many([*"abcdef"])
    assert await take(queue, 2, remove=False, after_id=2) == [(3, b"c"), (4, b"d")]
    assert [each.id async for each in queue.consume(remove=False, after_id=3, limit=2)] == [4, 5]
    assert await queue.count() == 6


async def test_at_most_so_many_are_consumed(site: Site) -> None:
    queue = site.queue()
    await queue.attach()
    await queue.push_many([*"abcde"])
    assert [each.body async for each in queue.consume(limit=2)] == [b"a", b"b"]
    assert await queue.count() == 3
    assert [each.body async for each in queue.consume(limit=2)] == [b"c", b"d"]


async def test_handlers_are_called_in_order(site: Site) -> None:
    queue, taken = site.queue(), list[bytes]()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        taken.append(message.body)

    queue.on("message", handle)
    await queue.attach()
    await queue.consume()
    assert queue.is_consuming
    await queue.push_many([*"abc"])
    await eventually(lambda: taken == [b"a", b"b", b"c"])
    await queue.stop()
    assert not queue.is_consuming


async def test_thousands_of_messages_come_once_each_in_order(site: Site) -> None:
    queue = site.queue()
    await queue.attach()
    bodies = [b"%d" % number for number in range(3_500)]
    ids = await queue.push_many(bodies)
    assert ids == [*range(1, 3_501)]
    assert await take(queue, 3_500) == list(zip(ids, bodies, strict=True))


async def test_a_full_queue_refuses(site: Site) -> None:
    queue = site.queue()
    await queue.attach(maxsize=2)
    with pytest.raises(Full) as caught:
        await queue.push_many([*"abc"])
    assert caught.value.ids == [1, 2]
    with pytest.raises(Full):
        await queue.push("d")


async def test_pushes_before_attach_wait_for_it_in_order(site: Site) -> None:
    queue = site.queue()
    pushes = [queue.push(str(number)) for number in range(3)]
    await queue.exists()
    assert not any(each.done() for each in pushes)
    await queue.attach()
    assert await asyncio.gather(*pushes) == [1, 2, 3]


async def test_what_needs_attach_says_so(site: Site) -> None:
    """BQ-D32: Node's server would end its process."""
    queue = site.queue()
    with pytest.raises(WrongCall, match="attach"):
        await queue.close()
    assert await queue.exists() is False
    for call in (queue.count, queue.ttl, queue.maxsize, queue.metadata, queue.flush):
        if getattr(queue, "has_more", True):  # not with Node's server
            assert not await call()
        else:
            with pytest.raises(WrongCall, match="attach"):
                await call()


async def test_a_channel(site: Site, bus: Bus) -> None:
    events = list[Any]()
    end, other = site.channel(), bus.channel("zoo")
    for name in ("connect", "remote:connect", "remote:disconnect", "end", "disconnect"):
        end.on(name, lambda name=name: events.append(name))
    end.on("message", lambda message: events.append(message.body))
    heard = list[bytes]()
    other.on("message", lambda message: heard.append(message.body))
    await end.connect()
    await other.listen()
    await eventually(lambda: events == ["connect", "remote:connect"])
    await other.send("to the other site")
    await eventually(lambda: b"to the other site" in events)
    await end.send({"back": [None, "ü"]}, json=True)
    await eventually(lambda: heard == ['{"back":[null,"ü"]}'.encode()])
    await other.disconnect()
    await eventually(lambda: "remote:disconnect" in events)
    await other.listen()
    await other.end()
    await eventually(lambda: events[-2:] == ["disconnect", "end"])
    assert not end.is_attached


async def test_a_reliable_channel_brings_again_what_was_not_acknowledged(site: Site, bus: Bus) -> None:
    end, other = site.channel(), bus.channel("zoo")
    await other.listen()
    await end.connect(reliable=True)
    await other.send("a")
    async for message in end.messages():
        assert message.body == b"a"
        break
    await end.disconnect()
    await end.connect(reliable=True)
    async for message in end.messages():
        assert message.body == b"a"
        await message.ack()
        break
    await end.disconnect()


@dataclasses.dataclass
class Cart:
    items: list[str]
    total: int | None = 0


async def test_an_object(site: Site, bus: Bus) -> None:
    cart, same = Cart(["pear"]), Cart([])
    kept, local = site.persistable(cart), bus.persistable("cart", same)
    assert await kept.load() is False
    assert await kept.save() is True
    assert await kept.save() is False
    assert await local.load() is True
    assert same == Cart(["pear"], 0)
    same.items.append("plum")
    await local.save()
    assert await kept.load() is True
    assert cart.items == ["pear", "plum"]
    await kept.persist(120)
    await kept.unpersist()


async def test_a_topic(site: Site, bus: Bus) -> None:
    topic, local = site.pubsub(), bus.pubsub("news")
    heard, there = list[bytes](), list[bytes]()
    topic.on("message", heard.append)
    local.on("message", there.append)
    await topic.subscribe()
    await local.subscribe()
    await local.publish("a")
    await topic.publish({"b": 1}, json=True)
    await eventually(lambda: (heard, there) == ([b"a", b'{"b":1}'], [b"a", b'{"b":1}']))
    await topic.unsubscribe()


async def test_a_bus_without_a_server_has_nothing_local() -> None:
    async with Bus() as bus:
        with pytest.raises(WrongCall, match="no server of its own"):
            await bus.queue("foo").attach()
        with pytest.raises(WrongCall, match="no server of its own"):
            await bus.pubsub("foo").subscribe()
