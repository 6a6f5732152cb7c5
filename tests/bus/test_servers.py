"""Several servers, of which some are down, stopped, replicas, or refuse the login: BQ-D01 to BQ-D04."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import redis as sync
from redis.asyncio import Redis

from penstock.base.errors import Unauthorized, Unavailable
from penstock.bus import Bus
from penstock.testing.proxy import Proxy
from penstock.testing.server import EmbeddedServer
from tests.bus.given import attached, heard, lose_patience, take
from tests.support.harness import PATIENCE, eventually

FIRST, SECOND = "foo", "bar"
"""Queues whose home is the first, and the second, of two servers."""


@pytest.fixture
async def pair() -> AsyncIterator[list[EmbeddedServer]]:
    async with EmbeddedServer(aof=True) as one, EmbeddedServer(aof=True) as two:
        yield [one, two]


def urls(servers: list[EmbeddedServer]) -> list[str]:
    return [each.url for each in servers]


def exists(server: EmbeddedServer, name: str) -> bool:
    with sync.Redis.from_url(server.url) as client:
        return bool(client.exists(f"bus:queue:{name}:metadata"))


async def test_BQ_D01_online_and_offline_are_told_once_each(pair: list[EmbeddedServer]) -> None:
    bus = Bus(*urls(pair), patience=60)
    events = heard(bus)
    await bus.connect()
    await eventually(lambda: all(each.is_up for each in bus.instances))
    names = [each.address for each in bus.instances]
    assert events[1] == ("online",)
    assert sorted(each for each in events if each[0] == "instance:up") == sorted(
        ("instance:up", name) for name in names
    )
    del events[:]
    for _ in range(2):
        await asyncio.to_thread(pair[1].stop)
        await eventually(lambda: not bus.instances[1].is_up)
        await asyncio.to_thread(pair[1].start)
        await eventually(lambda: bus.instances[1].is_up)
    assert events == [("instance:down", names[1]), ("degraded", [names[1]]), ("instance:up", names[1])] * 2
    del events[:]
    for each in pair:
        await asyncio.to_thread(each.stop)
    await eventually(lambda: not bus.is_online)
    assert [each for each in events if each[0] in ("online", "offline")] == [("offline",)]
    await asyncio.to_thread(pair[0].start)
    await eventually(lambda: bus.is_online)
    await bus.disconnect()
    assert [each[0] for each in events if "line" in each[0]] == ["offline", "online", "offline"]


async def test_BQ_D02_a_bus_starts_while_one_of_several_servers_is_down(pair: list[EmbeddedServer]) -> None:
    await asyncio.to_thread(pair[1].stop)
    bus = Bus(*urls(pair), patience=60)
    events = heard(bus)
    async with bus:
        await eventually(lambda: bus.instances[1].is_up is False)
        assert bus.is_online
        assert ("degraded", [bus.instances[1].address]) in events
        waits = asyncio.ensure_future(attached(bus, "x", name=SECOND))
        await asyncio.to_thread(pair[1].start)
        queue = await waits
        assert await take(queue, 1) == [(1, b"x")]
        assert exists(pair[1], SECOND)


async def test_BQ_D03_a_server_that_is_down_is_never_taken_for_not_there(pair: list[EmbeddedServer]) -> None:
    async with Bus(pair[1].url) as alone:  # a home that its name does not give
        await attached(alone, "x", name=FIRST)
    async with Bus(*urls(pair), patience=1) as bus:
        await eventually(lambda: all(each.is_up for each in bus.instances))
        await asyncio.to_thread(pair[1].stop)
        with pytest.raises(Unavailable):
            await bus.queue(FIRST).attach()
        assert not exists(pair[0], FIRST)
        with pytest.raises(Unavailable):
            await bus.queue(FIRST).count()
        await asyncio.to_thread(pair[1].start)
    async with Bus(*urls(pair)) as bus:
        assert await take(await attached(bus, name=FIRST), 1) == [(1, b"x")]
        assert not exists(pair[0], FIRST)


@pytest.mark.parametrize("down", [0, 1])
async def test_BQ_D03_a_queue_is_found_while_another_server_is_down(pair: list[EmbeddedServer], down: int) -> None:
    name = (SECOND, FIRST)[down]
    async with Bus(*urls(pair)) as bus:
        await attached(bus, "x", name=name)
    await asyncio.to_thread(pair[down].stop)
    async with Bus(*urls(pair), patience=3_600) as bus, asyncio.timeout(PATIENCE):
        assert await take(await attached(bus, name=name), 1) == [(1, b"x")]


async def test_of_two_servers_that_have_a_queue_clients_find_the_first(pair: list[EmbeddedServer]) -> None:
    for each in pair:
        async with Bus(each.url) as bus:
            await attached(bus, "x", name=SECOND)
    async with Proxy(pair[0].port) as slow, Bus(f"redis://{slow.address}/0", pair[1].url) as bus:
        await eventually(lambda: all(each.is_up for each in bus.instances))
        slow.delay = 0.05
        assert (await attached(bus, name=SECOND)).instance is bus.first
        os.kill(pair[0].pid, signal.SIGSTOP)  # one that does not answer keeps nobody from the other
        try:
            async with asyncio.timeout(PATIENCE):
                assert (await attached(bus, name=SECOND)).instance is bus.instances[1]
        finally:
            os.kill(pair[0].pid, signal.SIGCONT)


async def test_BQ_D03_a_server_that_does_not_answer_is_waited_for(pair: list[EmbeddedServer]) -> None:
    async with Bus(*urls(pair)) as bus:
        await attached(bus, "x", name=FIRST)
        await eventually(lambda: all(each.is_up for each in bus.instances))
        bus.forget_home("bus:queue:foo:metadata")
        os.kill(pair[0].pid, signal.SIGSTOP)
        try:
            attaching = asyncio.ensure_future(bus.queue(FIRST).attach())
            await asyncio.sleep(0.3)  # timing: nothing may happen
            assert not attaching.done()
        finally:
            os.kill(pair[0].pid, signal.SIGCONT)
        assert await attaching is True
    assert not exists(pair[1], FIRST)


async def test_an_error_names_a_server_that_was_not_reached_once(pair: list[EmbeddedServer]) -> None:
    os.kill(pair[1].pid, signal.SIGSTOP)
    try:
        async with Bus(*urls(pair)) as bus:
            lose_patience(bus, 0.5)
            with pytest.raises(Unavailable) as raised:
                await bus.queue(SECOND).attach()
    finally:
        os.kill(pair[1].pid, signal.SIGCONT)
    assert str(raised.value).endswith(f"{pair[1].url}: it was not reached yet")
    assert str(raised.value).count(pair[1].url) == 1


async def test_BQ_09_queues_are_found_after_a_server_was_added(pair: list[EmbeddedServer]) -> None:
    names = [f"q{number}" for number in range(20)]
    async with Bus(*urls(pair)) as bus:
        for name in names:
            await attached(bus, name, name=name)
    async with EmbeddedServer() as third, Bus(*urls([*pair, third])) as bus:
        for name in names:
            assert await take(await attached(bus, name=name), 1) == [(1, name.encode())]
            assert sum(exists(each, name) for each in (*pair, third)) == 1


async def test_BQ_08_each_queue_is_on_the_server_of_its_name(pair: list[EmbeddedServer]) -> None:
    async with Bus(*urls(pair)) as bus:
        for name in (FIRST, SECOND, "日本", "😀", "with space"):
            await attached(bus, name=name)
    assert [exists(pair[0], each) for each in (FIRST, SECOND, "日本", "😀", "with space")] == [
        True,
        False,
        False,
        False,
        True,
    ]


async def test_BQ_D04_script_flush_and_a_restart_lose_nothing() -> None:
    async with EmbeddedServer(aof=True) as server, Bus(server.url, patience=60) as bus:
        producer, consumer = await attached(bus), await attached(bus)
        taken = list[int]()
        consumer.on("message", lambda message: taken.append(message.id))
        await consumer.consume(reliable=True)
        async with Redis.from_url(server.url) as client:
            await producer.push("a")
            await client.script_flush()
            await producer.push("b")
            await eventually(lambda: taken == [1, 2])
            await client.script_flush()
            await consumer.ack(2)
        await asyncio.to_thread(server.restart)
        assert await producer.push("c") == 3
        await eventually(lambda: taken == [1, 2, 3])
        await consumer.ack(3)
        async with Redis.from_url(server.url) as client:
            assert not await client.exists(*consumer.keys[1::2])


async def test_BQ_06_what_is_pushed_while_the_server_is_away_arrives_in_order(pair: list[EmbeddedServer]) -> None:
    async with Bus(pair[0].url, patience=60) as bus:
        queue = await attached(bus)
        await asyncio.to_thread(pair[0].stop)
        await eventually(lambda: not bus.is_online)
        pushes = [queue.push(str(number)) for number in range(1, 1_001)]
        await asyncio.to_thread(pair[0].start)
        assert await asyncio.gather(*pushes) == [*range(1, 1_001)]
        assert [id_ for id_, _ in await take(queue, 1_000)] == [*range(1, 1_001)]


@pytest.mark.parametrize("how", ["down", "stopped"])
async def test_BQ_D27_pushes_that_wait_are_bounded(
    pair: list[EmbeddedServer], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.instance.MAX_SILENCE", 3_600)  # a server that is stopped is not left
    async with Bus(pair[0].url, patience=60, buffer=10) as bus:
        queue = await attached(bus)
        if how == "down":
            await asyncio.to_thread(pair[0].stop)
            await eventually(lambda: not bus.is_online)
        else:
            os.kill(pair[0].pid, signal.SIGSTOP)
        first = queue.push("first")
        await asyncio.sleep(0)
        await eventually(lambda: bus.instances[0].is_away)
        pushes = [queue.push(str(number)) for number in range(20)]
        for each in pushes[10:]:
            with pytest.raises(Unavailable, match="buffer"):
                await each
        asked = [asyncio.ensure_future(bus.queue("other").count()) for _ in range(12)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            with pytest.raises(Unavailable, match="buffer"):
                one.result()
        if how == "down":
            await asyncio.to_thread(pair[0].start)
        else:
            os.kill(pair[0].pid, signal.SIGCONT)
        assert await first == 1
        assert await asyncio.gather(*pushes[:10]) == [*range(2, 12)]
        for found in await asyncio.gather(*asked, return_exceptions=True):
            assert found == 0 or isinstance(found, Unavailable)


async def test_BQ_D27_pushes_that_wait_for_attach_are_bounded(redis: "Redis", redis_url: str) -> None:
    async with Bus(redis_url, buffer=3) as bus:
        queue = bus.queue("foo")
        pushes = [queue.push(str(number)) for number in range(4)]
        with pytest.raises(Unavailable, match="attach"):
            await pushes[3]
        await queue.attach()
        assert await asyncio.gather(*pushes[:3]) == [1, 2, 3]


async def test_BQ_05_a_server_that_stays_away_raises_after_patience(pair: list[EmbeddedServer]) -> None:
    await asyncio.to_thread(pair[0].stop)
    bus = Bus(pair[0].url, patience=0.5)
    with pytest.raises(Unavailable, match="Connect call failed"):
        async with asyncio.timeout(PATIENCE):
            await bus.connect()
    assert not bus.is_online
    lose_patience(bus, PATIENCE)
    await asyncio.to_thread(pair[0].start)
    await bus.connect()
    assert bus.is_online
    queue = await attached(bus)
    lose_patience(bus, 0.5)
    await asyncio.to_thread(pair[0].stop)
    await eventually(lambda: not bus.is_online)  # what is sent before may have been executed
    for call in (lambda: queue.push("x"), queue.count, queue.flush, lambda: bus.pubsub("p").publish("x")):
        with pytest.raises(Unavailable):
            await call()
    await bus.disconnect()
    assert not bus.is_online


@pytest.mark.parametrize("patience", [None, 60])
async def test_a_wrong_password_is_told_at_once(patience: float | None) -> None:
    async with EmbeddedServer(requirepass="right") as server:
        wrong = server.url.replace("redis://", "redis://:wrong@")
        async with asyncio.timeout(30):
            with pytest.raises(Unauthorized, match=r"WRONGPASS|invalid"):
                await Bus(wrong, patience=patience).connect()
            with pytest.raises(Unauthorized):
                await Bus(server.url, patience=patience).connect()
        async with Bus(wrong.replace("wrong", "right")) as bus:
            await attached(bus, "x")


async def test_BQ_07_a_replica_is_waited_for_until_it_is_a_primary(pair: list[EmbeddedServer]) -> None:
    with sync.Redis.from_url(pair[0].url) as client:
        client.replicaof("127.0.0.1", str(pair[1].port))
        with pytest.raises(Unavailable, match="replica"):
            await Bus(pair[0].url, patience=0.5).connect()
        client.replicaof("NO", "ONE")
        async with Bus(pair[0].url, patience=60) as bus:
            events = heard(bus)
            queue = await attached(bus, "a")
            client.replicaof("127.0.0.1", str(pair[1].port))
            pushing = queue.push("b")
            await eventually(lambda: not bus.is_online)
            assert not pushing.done()
            client.replicaof("NO", "ONE")
            await pushing  # the data may be those of the primary that it followed for a moment
            assert [each[0] for each in events if "line" in each[0]] == ["offline", "online"]


async def test_a_full_server_makes_pushes_wait_and_lets_messages_be_taken(redis: "Redis", redis_url: str) -> None:
    async with Bus(redis_url) as bus:
        queue = await attached(bus, "a", "b")
        await redis.config_set("maxmemory", 1)
        try:
            lose_patience(bus, 0.3)
            with pytest.raises(Unavailable, match=r"OOM|memory"):
                await queue.push("c")
            lose_patience(bus, PATIENCE)
            assert await take(queue, 2, reliable=True) == [(1, b"a"), (2, b"b")]
            await queue.ack(1)
        finally:
            await redis.config_set("maxmemory", 0)
        assert await queue.push("c") == 3
        assert await take(queue, 2, reliable=True) == [(2, b"b"), (3, b"c")]


async def test_queues_live_on_while_their_server_was_out_of_reach(pair: list[EmbeddedServer]) -> None:
    """They are kept alive at once when it is back, not when their turn comes."""
    async with Bus(pair[0].url, patience=60) as bus:
        queue = await attached(bus, "x", ttl=60)
        with sync.Redis.from_url(pair[0].url) as client:
            client.expire("bus:queue:foo:metadata", 30)
            client.client_kill_filter(_type="normal", skipme=True)
            await eventually(lambda: client.ttl("bus:queue:foo:metadata") > 50)
        assert queue.is_attached
