"""A federated object over websockets that are cut, and sites that come and go."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from penstock.base.errors import Unauthorized, Unavailable, Unconfirmed
from penstock.bus import Bus, Queue
from penstock.bus.federation import FederatedChannel, FederatedQueue
from penstock.bus.federation.frames import call_line
from penstock.bus.federation.pubsub import FederatedPubSub
from penstock.testing.server import EmbeddedServer
from services.gateway.listener import Listener
from tests.bus.gateway import SECRET, ends, serving, url_of
from tests.bus.raw import raw
from tests.support.harness import eventually

MESSAGES = 2_000


@pytest.fixture
async def remote(gateway: Listener) -> AsyncIterator[Bus]:
    async with Bus(patience=60) as connected:
        yield connected


async def federated(remote: Bus, gateway: Listener, name: str = "foo") -> FederatedQueue:
    queue = remote.federate(remote.queue(name), url_of(gateway), secret=SECRET)
    await queue.attach()
    return queue


async def filled(bus: Bus) -> Queue:
    queue = bus.queue("foo")
    await queue.attach()
    await queue.push_many([b"%d" % number for number in range(MESSAGES)])
    return queue


async def test_events_tell_of_a_websocket_that_is_lost(remote: Bus, gateway: Listener) -> None:
    queue = remote.federate(remote.queue("foo"), url_of(gateway), secret=SECRET)
    events = list[str]()
    for name in ("ready", "reconnecting", "reconnected", "close", "attached"):
        queue.on(name, lambda *_, name=name: events.append(name))
    await queue.attach()
    gateway.drop_all()
    await eventually(lambda: "reconnected" in events)
    await queue.leave()
    await queue.leave()
    assert events == ["ready", "attached", "reconnecting", "attached", "reconnected", "close"]


@ends
@pytest.mark.parametrize("reliable", [True, False])
async def test_BQ_D24_a_consumer_loses_nothing(remote: Bus, gateway: Listener, bus: Bus, *, reliable: bool) -> None:
    queue, taken = await federated(remote, gateway), list[int]()
    await filled(bus)
    async for message in queue.consume(reliable=reliable):
        taken.append(message.id)
        if reliable and message.id % 50 == 0:
            message.ack()
        if message.id % 399 == 0 and Counter(taken)[message.id] == 1:
            gateway.drop_all()
            await eventually(lambda: not queue.is_ready)
        if message.id == MESSAGES:
            break
    await queue.stop()
    assert {*taken} == {*range(1, MESSAGES + 1)}
    if reliable:
        jumps = [(before, after) for before, after in pairwise(taken) if after != before + 1]
        assert len(jumps) >= 4
        assert all(after <= before for before, after in jumps)
    else:
        assert gateway.counters["given_back"] > 0


@ends
async def test_a_reader_goes_on_behind_what_it_has_read(remote: Bus, gateway: Listener, bus: Bus) -> None:
    """Also if what was before it has been taken meanwhile."""
    local, queue = await filled(bus), await federated(remote, gateway)
    read = list[int]()
    async for message in queue.consume(remove=False, after_id=10):
        read.append(message.id)
        if message.id == 500:
            assert len([each async for each in local.consume(limit=100)]) == 100
            gateway.drop_all()
            await eventually(lambda: not queue.is_ready)
        if message.id == MESSAGES:
            break
    assert read == [*range(11, MESSAGES + 1)]


@ends
async def test_each_push_is_in_the_queue_once_or_raises(remote: Bus, gateway: Listener, bus: Bus) -> None:
    queue, outcomes = await federated(remote, gateway), dict[str, list[bytes]](ok=[], unknown=[])

    async def push(number: int) -> None:
        body = b"%d" % number
        try:
            await queue.push(body)
            outcomes["ok"].append(body)
        except Unconfirmed:
            outcomes["unknown"].append(body)

    for first in range(0, MESSAGES, 100):
        pushes = [asyncio.ensure_future(push(number)) for number in range(first, first + 100)]
        if first % 500 == 0:
            await asyncio.sleep(0)
            gateway.drop_all()
        await asyncio.gather(*pushes)
    local, found = bus.queue("foo"), Counter[bytes]()
    await local.attach()
    many = await local.count()
    async for message in local.consume(limit=many):
        found[message.body] += 1
    assert max(found.values()) == 1
    assert {*outcomes["ok"]} <= {*found} <= {*outcomes["ok"], *outcomes["unknown"]}
    assert sum(map(len, outcomes.values())) == MESSAGES


async def test_a_new_websocket_takes_over_from_one_that_hangs(gateway: Listener, bus: Bus) -> None:
    """The gateway does not know yet that the former one is dead, and its consumer has a lease."""
    await filled(bus)
    session, alone = "5" * 32, {"reliable": True, "exclusive": True}
    async with raw(gateway) as hanging, raw(gateway) as other:
        channel = await hanging.create("queue", "foo", session=session)
        await channel.on("messages", 7)
        await channel.call("attach")
        hanging.connection.transport.pause_reading()
        await channel.send(call_line("consume", (alone,)))
        await eventually(lambda: gateway.counters["delivered"] > 0)
        stranger = await other.create("queue", "foo", session="6" * 32)
        await stranger.call("attach")
        assert (await stranger.call("consume", alone))[0].startswith("Occupied: ")
        same = await other.create("queue", "foo", session=session)
        await same.on("messages", 7)
        await same.call("attach")
        await same.send(call_line("consume", (alone,)))
        assert (await same.next())["arguments"][0] == ["0", 1]
        assert gateway.counters["taken_over"] == 1


async def test_a_wrong_secret_is_told_at_once(remote: Bus, gateway: Listener) -> None:
    events = list[str]()
    queue = remote.federate(remote.queue("foo"), url_of(gateway), secret="wrong secret")
    queue.on("unauthorized", lambda: events.append("unauthorized"))
    with pytest.raises(Unauthorized):
        await queue.attach()
    late = remote.federate(remote.queue("bar"), url_of(gateway), secret="wrong secret")
    with pytest.raises(Unauthorized):
        await late.exists()
    assert events == ["unauthorized"]
    assert gateway.counters["unauthorized"] == 1


async def test_a_name_that_is_not_allowed_is_told_at_once(redis: "Redis", redis_url: str, remote: Bus) -> None:
    async with serving(redis_url, queues=["orders.*"]) as gateway:
        queue = remote.federate(remote.queue("secrets"), url_of(gateway), secret=SECRET)
        with pytest.raises(Unauthorized, match="not allowed"):
            await queue.attach()
        allowed = await federated(remote, gateway, "orders.1")
        assert await allowed.push("x") == 1


async def test_all_ends_with_the_bus(gateway: Listener) -> None:
    """BQ-D22: in Node the websockets and their timers stay."""
    async with Bus() as bus:
        await federated(bus, gateway)
        pending = bus.federate(bus.queue("bar"), url_of(gateway), secret=SECRET).push("x")
    with pytest.raises(Exception, match="left"):
        await pending
    await eventually(lambda: gateway.counters["disconnections"] == 1)
    gc.collect()
    names = [each.get_coro().__qualname__ for each in asyncio.all_tasks()]  # type: ignore[union-attr]
    assert not [each for each in names if each.startswith(("Socket.", "Remote.", "FederatedQueue.", "Writer."))]


async def test_a_gateway_that_restarts_is_found_again(redis: "Redis", redis_url: str, remote: Bus, bus: Bus) -> None:
    async with serving(redis_url) as first:
        queue, port = await federated(remote, first), first.port
        assert await queue.push("a") == 1
    async with serving(redis_url, listen_port=port):
        assert await queue.push("b") == 2
        assert [each.body async for each in queue.consume(limit=2)] == [b"a", b"b"]


async def test_BQ_37_announced_queues_of_another_site_are_found(
    gateway: Listener, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot listen to them at first says so once, and tries again."""
    subscribe, failures = FederatedPubSub.subscribe, [Unavailable("away"), Unavailable("away"), Unavailable("away")]

    async def subscribed(topic: FederatedPubSub) -> None:
        if failures:
            raise failures.pop()
        await subscribe(topic)

    monkeypatch.setattr(FederatedPubSub, "subscribe", subscribed)
    with EmbeddedServer() as own, capture_logs() as logs:
        async with Bus(own.url) as remote:
            other = remote.federate(remote.queue("other"), url_of(gateway), secret=SECRET)
            await other.exists()
            mine = remote.queue("mine")
            await mine.attach()
            announced, clash = bus.queue("theirs"), bus.queue("mine")
            await eventually(lambda: "announcements of queues again" in {line["event"] for line in logs})
            await clash.attach(discoverable=True, ttl=30)
            await announced.attach(discoverable=True, ttl=30)

            async def is_known() -> bool:
                return await remote.queue("theirs").find() == url_of(gateway)

            await eventually(is_known)
            assert await mine.find() == "local"
            found: Any = await remote.queue("nowhere").find()
            assert found is None
    said = [line["event"] for line in logs if "announcements" in line["event"]]
    assert said == ["no announcements of queues", "announcements of queues again"]


async def opened(remote: Bus, gateway: Listener, **options: Any) -> FederatedChannel:
    end = remote.federate(remote.channel("zoo"), url_of(gateway), secret=SECRET)
    await end.connect(**options)
    return end


@ends
async def test_messages_that_were_taken_from_a_channel_do_not_come_again(
    remote: Bus, gateway: Listener, bus: Bus
) -> None:
    end, other, taken = await opened(remote, gateway), bus.channel("zoo"), list[bytes]()
    await other.listen()
    for body in (b"a", b"b", b"c"):
        await other.send(body)
    for _ in range(3):
        async for message in end.messages():
            taken.append(message.body)
            break
        await end.disconnect()
        await end.connect()
    assert taken == [b"a", b"b", b"c"]


@ends
@pytest.mark.parametrize("turns", range(6))
async def test_a_loop_over_a_channel_that_is_cancelled_loses_no_message(
    remote: Bus, gateway: Listener, turns: int
) -> None:
    """In whichever turn of the event loop that happens while a message comes."""
    end = await opened(remote, gateway)
    await asyncio.sleep(0)

    async def first() -> bytes:
        async for message in end.messages():
            return message.body
        raise AssertionError("the loop ended")

    taking = asyncio.create_task(first())
    await asyncio.sleep(0)
    end.happened("message", ["a", 1])
    for _ in range(turns):
        await asyncio.sleep(0)
    taking.cancel()
    (found,) = await asyncio.gather(taking, return_exceptions=True)
    end.happened("message", ["b", 2])
    assert await first() == (b"b" if found == b"a" else b"a")
