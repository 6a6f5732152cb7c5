"""Node's busmq is served by our gateway: queues, channels, objects, topics, over what Node itself sends."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.bus import Bus
from services.gateway.listener import Listener
from tests.bus.gateway import serving, url_of
from tests.bus.node import Peer, Program, node
from tests.support.harness import eventually


@pytest.fixture
async def gateway(redis: "Redis", redis_url: str) -> AsyncIterator[Listener]:
    async with serving(redis_url, accept_query_secret=True, secret="n0tsosecret") as listener:
        yield listener


@pytest.fixture
async def program() -> AsyncIterator[Program]:
    async with node() as started:
        yield started


def given(gateway: Listener, type_: str, *events: str, **more: Any) -> dict[str, Any]:
    """Return the options of an object that Node federates."""
    return {"type": type_, "url": url_of(gateway, "http"), "secret": "n0tsosecret", "events": events, **more}


async def returned(peer: Peer, method: str, *values: Any) -> tuple[Any, ...]:
    await peer.call(method, *values)
    return (await peer.expect("returned", method))[1:]


async def test_a_queue(gateway: Listener, program: Program, bus: Bus) -> None:
    options = given(gateway, "queue", "attached", "consuming", "message", "error", "detached", "closed")
    async with program.peer("fedobject", "foo", [], **options) as peer:
        await peer.expect("ready")
        await peer.call("attach", {"ttl": 10})
        assert await peer.expect("attached") == (False,)
        assert await returned(peer, "push", "hello") == (None, 1)
        assert await returned(peer, "push", {"a": [1, "ü"]}) == (None, 2)
        assert await returned(peer, "count") == (None, 2)
        await peer.call("consume")
        await peer.expect("consuming", True)
        assert await peer.expect("message") == ("hello", 1)
        assert await peer.expect("message") == ('{"a":[1,"ü"]}', 2)
        assert await returned(peer, "ttl") == (None, 10)
        assert await returned(peer, "maxsize") == (None, 0)
        assert await returned(peer, "exists") == (None, True)
        assert await returned(peer, "find") == (None, "local")
        assert await returned(peer, "metadata", "x", "y") == (None, None)
        assert await returned(peer, "metadata", "x") == (None, "y")
        local = bus.queue("foo")
        assert await local.attach() is True
        await local.push("from here")
        assert await peer.expect("message") == ("from here", 3)
        await peer.call("stop")
        await peer.expect("consuming", False)
        await peer.call("detach")
        await peer.expect("detached")


async def test_values_come_back_from_what_is_a_getter_in_node(gateway: Listener, program: Program) -> None:
    """BQ-D23: over Node's own server these calls have no value."""
    async with program.peer("fedobject", "foo", [], **given(gateway, "queue", "attached")) as peer:
        await peer.expect("ready")
        assert await returned(peer, "isAttached") == (False,)
        await peer.call("attach")
        await peer.expect("attached")
        assert await returned(peer, "isAttached") == (True,)
        assert await returned(peer, "push", "x") == (None, 1)
        assert await returned(peer, "pushed") == (None, 1)
        assert await returned(peer, "consumed") == (None, 0)
        assert await returned(peer, "isConsuming") == (None, False)


async def test_reliable_consumption(gateway: Listener, program: Program, bus: Bus, redis: "Redis") -> None:
    local = bus.queue("foo")
    await local.attach()
    await local.push_many(["a", "b", "c"])
    async with program.peer("fedobject", "foo", [], **given(gateway, "queue", "message")) as peer:
        await peer.expect("ready")
        await peer.call("attach")
        await peer.call("consume", {"reliable": True})
        await peer.expect("message", "c", 3)
        assert await returned(peer, "ack", 2) == (None,)  # in Node the callback is never called: BQ-D05
        assert await redis.lrange("bus:queue:foo:toack", 0, -1) == [b"3", b"c"]
        await program.kill()
    await eventually(lambda: gateway.counters["disconnections"] == gateway.counters["connections"])
    taken = [each async for each in local.consume(reliable=True, limit=1)]
    assert [(each.id, each.body) for each in taken] == [(3, b"c")]


async def test_a_channel(gateway: Listener, program: Program, bus: Bus) -> None:
    events = ("connect", "remote:connect", "message", "remote:disconnect", "end", "disconnect", "error")
    local = bus.channel("zoo")
    received = list[bytes]()
    local.on("message", lambda message: received.append(message.body))
    ended = list[str]()
    local.on("end", lambda: ended.append("end"))
    async with program.peer("fedobject", "zoo", [], **given(gateway, "channel", *events)) as peer:
        await peer.expect("ready")
        await peer.call("connect")
        await peer.expect("connect")
        await local.listen()
        await peer.expect("remote:connect")
        await local.send("from Python")
        assert (await peer.expect("message"))[0] == "from Python"
        assert (await returned(peer, "send", {"from": "Node"}))[0] is None
        await eventually(lambda: received == [b'{"from":"Node"}'])  # in Node [object Object]: BQ-D17
        await peer.call("end")
        await eventually(lambda: ended == ["end"])


async def test_an_object(gateway: Listener, program: Program, bus: Bus, redis: "Redis") -> None:
    options = given(gateway, "persistify", attrs=["x", "y"])
    async with program.peer("fedobject", "cart", [], **options) as peer:
        await peer.expect("ready")
        await peer.call("set", {"x": {"deep": [1, None]}, "y": "text"})
        assert await returned(peer, "save") == (None, "bus:persisted:cart")
        assert await redis.hgetall("bus:persisted:cart") == {b"x": b'{"deep":[1,null]}', b"y": b'"text"'}
        assert 50 < await redis.ttl("bus:persisted:cart") <= 60
        await redis.hset("bus:persisted:cart", "x", "7")
        assert await returned(peer, "load") == (None, True, "bus:persisted:cart")
        await peer.call("get")
        assert await peer.expect("got") == ([7, "text"],)
    async with program.peer("fedobject", "none", [], **given(gateway, "persistify", attrs=["x"])) as peer:
        await peer.expect("ready")
        assert (await returned(peer, "load"))[:2] == (None, False)


async def test_a_topic(gateway: Listener, program: Program, bus: Bus) -> None:
    heard = list[bytes]()
    local = bus.pubsub("news")
    local.on("message", heard.append)
    await local.subscribe()
    async with program.peer("fedobject", "news", [], **given(gateway, "pubsub", "subscribed", "message")) as peer:
        await peer.expect("ready")
        await peer.call("subscribe")
        await peer.expect("subscribed")
        await local.publish("from Python")
        assert await peer.expect("message") == ("from Python",)
        await peer.call("publish", {"a": 1})
        await eventually(lambda: heard[1:] == [b'{"a":1}'])
        assert await peer.expect("message") == ('{"a":1}',)


async def test_a_wrong_secret_is_unauthorized(gateway: Listener, program: Program) -> None:
    options = given(gateway, "queue") | {"secret": "wrong"}
    async with program.peer("fedobject", "foo", [], **options) as peer:
        await peer.expect("unauthorized")


async def test_node_reconnects_and_goes_on(gateway: Listener, program: Program, bus: Bus) -> None:
    local = bus.queue("foo")
    await local.attach()
    async with program.peer("fedobject", "foo", [], **given(gateway, "queue", "message")) as peer:
        await peer.expect("ready")
        await peer.call("attach")
        await peer.call("consume")
        await local.push("before")
        await peer.expect("message", "before", 1)
        gateway.drop_all()
        await peer.expect("reconnecting")
        await peer.expect("reconnected")
        await local.push("after")
        await peer.expect("message", "after", 2)


async def test_a_refused_queue_is_not_asked_for_in_a_hot_loop(redis: "Redis", redis_url: str, program: Program) -> None:
    """Node opens a channel again as soon as it is closed."""
    options: dict[str, Any] = {"accept_query_secret": True, "secret": "n0tsosecret"}
    async with (
        serving(redis_url, **options, queues=["orders.*"]) as gateway,
        program.peer("fedobject", "secrets", [], **given(gateway, "queue")) as peer,
    ):
        await eventually(lambda: gateway.counters["refused"] >= 2)
        begun, refused = json.dumps(peer.events), gateway.counters["refused"]
        async with program.peer("fedobject", "orders.1", [], **given(gateway, "queue", "attached")) as other:
            await other.expect("ready")
            await other.call("attach")
            await other.expect("attached")
        assert "ready" not in begun
        assert gateway.counters["refused"] <= refused + 20
