"""``penstock.bus`` with an outbox: pushes wait on disk while a server is away, and arrive in order, once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.base.errors import Full, Gone, RequestTimeout, Unavailable, WrongCall
from penstock.bus import Bus, fallback
from penstock.core.raw_connection import Packed
from penstock.testing.server import EmbeddedServer
from tests.bus.given import lose_patience
from tests.bus.moving import move
from tests.bus.node import node
from tests.bus.outboxes import attached, content, delivered, push
from tests.reliability.command_proxy import CommandFault, CommandProxy, Kind
from tests.reliability.soak.links import FaultyProxy
from tests.support.commandline import penstock
from tests.support.harness import eventually

WEEK = 7 * 86_400


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer(aof=True) as started:
        yield started


@pytest.fixture
async def pair() -> AsyncIterator[list[EmbeddedServer]]:
    async with EmbeddedServer(aof=True) as one, EmbeddedServer(aof=True) as two:
        yield [one, two]


async def test_what_waits_is_delivered_by_the_next_program_also_if_that_uses_no_such_queue(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Bus(server.url, outbox=tmp_path) as bus:
        queue = await attached(bus, ttl=77, maxsize=1000)
        await push(queue, 1)
        await asyncio.to_thread(server.stop)
        await push(queue, 2, 3)
    async with Bus(server.url, outbox=tmp_path) as bus:
        assert bus.waiting == 2
        assert await bus.queue("orders").attach() is False, "nobody knows, and nobody waits"
        assert await bus.queue("bills").attach() is False
        shown = await penstock("outbox", "status", "--datadir", str(tmp_path))
        assert f"2 for the queue orders of localhost:{server.port}/0, which has not taken them since 20" in shown.text
        assert "refused" in shown.text or "Connect call failed" in shown.text
    await asyncio.to_thread(server.start)
    async with Redis.from_url(server.url) as redis:
        await redis.flushall()
        async with Bus(server.url, outbox=tmp_path) as bus:
            assert bus.waiting == 2
        assert await content(server) == [2, 3], "the end of a program waits until all is sent"
        fields = await redis.hgetall("bus:queue:orders:metadata")
        assert (fields[b"ttl"], fields[b"maxsize"], fields[b"source"]) == (b"77", b"1000", b"local")
        assert 0 < await redis.ttl("bus:queue:orders:messages") <= 77


async def test_a_program_that_starts_while_the_server_is_away_attaches_later_and_loses_nothing(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Bus(server.url, outbox=tmp_path) as bus:
        await push(await attached(bus), *range(5))
    await asyncio.to_thread(server.stop)
    async with Bus(server.url, outbox=tmp_path, patience=0.1) as bus:
        queue = await attached(bus)
        assert await push(queue, 5, 6) == [0, 0]
        assert not queue.is_attached
        await asyncio.sleep(0.3)  # timing: beyond the patience
        await asyncio.to_thread(server.start)
        await delivered(bus)
        await eventually(lambda: queue.is_attached)
        await push(queue, 7)
    assert await content(server) == [*range(8)]


@pytest.mark.parametrize("nth", [2, 3])
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind.swallows], ids=lambda kind: kind.name.lower())
async def test_a_server_that_does_not_answer_is_given_up_and_nothing_is_lost_or_doubled(
    server: EmbeddedServer, tmp_path: Path, kind: Kind, nth: int
) -> None:
    """The connection is cut once it has been silent for the patience, or 10 s."""
    async with Bus(server.url, outbox=tmp_path / "other") as bus:
        await push(await attached(bus, "other"), 1)
    with CommandProxy(server.port, CommandFault(kind, "EVALSHA", nth)) as proxy:
        async with Bus(proxy.url, outbox=tmp_path, patience=1) as bus:
            queue = await attached(bus)
            await push(queue, 1, 2, 3)
            await delivered(bus)
    assert proxy.met
    assert await content(server) == [1, 2, 3]


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_queue_that_has_moved_gets_what_waits_once_at_its_new_server(
    pair: list[EmbeddedServer], tmp_path: Path, is_lost: bool
) -> None:
    """Also a push of which nobody knows whether it had arrived before the move: its ledger has moved, too."""
    one, two = pair
    async with Bus(one.url) as alone:  # on the first server, whatever the placement
        await attached(alone)
    kind = Kind.CUT_BEFORE_REPLY if is_lost else Kind.CUT_BEFORE
    with CommandProxy(one.port, CommandFault(kind, "EVALSHA", 4)) as proxy:
        async with Bus(one.url, outbox=tmp_path / "other") as bus:
            await push(await attached(bus, "other"), 1)
        async with Bus(proxy.url, two.url, outbox=tmp_path) as bus:
            queue = await attached(bus)
            assert await push(queue, 1) == [1]
            (way,) = bus.outbox._fallback._destinations.values()  # type: ignore[union-attr]
            meet, moved = way._meet, asyncio.Event()

            async def meet_later() -> None:
                await moved.wait()
                await meet()

            way._meet = meet_later  # type: ignore[method-assign]
            await push(queue, 2, 3)
            assert proxy.met
            async with Bus(one.url, two.url) as mover:
                await move(mover)
            moved.set()
            await delivered(bus)
            assert await push(queue, 4) == [4]
    assert await content(two) == [1, 2, 3, 4]
    async with Redis.from_url(one.url) as redis:
        assert await redis.keys("bus:queue:orders:*") == []


async def test_a_queue_that_moves_right_after_it_was_found_has_one_home(
    pair: list[EmbeddedServer], tmp_path: Path
) -> None:
    """It is not created again at its former server: then some of the messages would be there, and some here."""
    one, two = pair
    async with Bus(one.url) as alone:
        await attached(alone)
    async with Bus(one.url, two.url, outbox=tmp_path) as bus, Bus(one.url, two.url) as mover:
        queue = await attached(bus)
        seek = bus._homes.seek

        async def seek_and_move(key: str) -> Any:
            found = await seek(key)
            bus._homes.seek = seek  # type: ignore[method-assign]
            await move(mover)
            return found

        bus._homes.seek = seek_and_move  # type: ignore[method-assign]
        await push(queue, 1, 2)
        await delivered(bus)
    async with Redis.from_url(one.url) as redis:
        assert await redis.keys("bus:queue:orders:*") == []
    assert await content(two) == [1, 2]


async def test_pushes_during_a_move_wait_on_disk_and_follow(pair: list[EmbeddedServer], tmp_path: Path) -> None:
    one, two = pair
    async with Bus(one.url) as alone:
        await attached(alone)
    async with Bus(one.url, two.url, outbox=tmp_path) as bus, Bus(one.url, two.url) as mover:
        queue = await attached(bus)
        ends = asyncio.Event()

        async def produce() -> int:
            number = 0
            while not ends.is_set():
                await push(queue, number := number + 1)
                await asyncio.sleep(0)
            return number

        producer = asyncio.create_task(produce())
        for target in (1, 0, 1):
            before = queue.pushed
            await eventually(lambda before=before: queue.pushed > before + 20)  # type: ignore[misc]
            await move(mover, target)
        ends.set()
        many = await producer
        await delivered(bus)
    assert await content(two) == [*range(1, many + 1)]


async def test_a_queue_whose_ttl_has_ended_is_created_again_as_it_was_attached(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Bus(server.url, outbox=tmp_path) as bus, Redis.from_url(server.url) as redis:
        queue = await attached(bus, ttl=55)
        await push(queue, 1)
        await redis.delete(*await redis.keys("bus:queue:orders:m*"), "bus:queue:orders:toack")
        assert await push(queue, 2) == [0]
        await delivered(bus)
        assert await content(server) == [2]
        assert await redis.hget("bus:queue:orders:metadata", "ttl") == b"55"


async def test_a_queue_that_was_closed_takes_no_push(server: EmbeddedServer, tmp_path: Path) -> None:
    async with Bus(server.url, outbox=tmp_path) as bus, Bus(server.url) as other:
        queue = await attached(bus)
        await push(queue, 1)
        await (await attached(other)).close()
        await eventually(lambda: not queue.is_attached)
        with pytest.raises(Gone):
            await queue.push("2")
        with pytest.raises(Gone):
            await queue.push_many(["2"])
        await queue.attach()
        assert await push(queue, 3) == [1]


async def test_a_full_queue_refuses_and_what_waits_on_disk_waits_for_room(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Bus(server.url, outbox=tmp_path) as bus:
        queue = await attached(bus, maxsize=3)
        await push(queue, 1)
        with pytest.raises(Full, match="2 were pushed") as full:
            await queue.push_many(["2", "3", "4"])
        assert (full.value.ids, queue.pushed) == ([2, 3], 3)
        with pytest.raises(Full):
            await queue.push("4")
        assert [str(message) async for message in queue.consume(limit=2)] == ["1", "2"]
        await asyncio.to_thread(server.stop)
        assert await push(queue, 5, 6, 7, 8) == [0, 0, 0, 0]
        await asyncio.to_thread(server.start)
        await eventually(lambda: bus.waiting == 2)
        assert await push(queue, 9) == [0]
        taken = [str(message) async for message in queue.consume(limit=6)]
        assert taken == ["3", "5", "6", "7", "8", "9"]
        await delivered(bus)


async def test_a_queue_that_may_be_on_a_server_that_is_away_waits_for_it(
    pair: list[EmbeddedServer], tmp_path: Path
) -> None:
    one, two = pair
    async with Bus(two.url) as alone:
        await push(await attached(alone), 1)
    await asyncio.to_thread(two.stop)
    async with Bus(one.url, two.url, outbox=tmp_path) as bus:
        queue = await attached(bus)
        assert await push(queue, 2) == [0]
        await asyncio.to_thread(two.start)
        await delivered(bus)
        assert await push(queue, 3) == [3]
    assert (await content(one), await content(two)) == ([], [1, 2, 3])


async def test_a_queue_whose_server_is_there_is_attached_while_another_server_is_away(
    pair: list[EmbeddedServer], tmp_path: Path
) -> None:
    one, two = pair
    async with Bus(one.url) as alone:
        await push(await attached(alone), 1)
    await asyncio.to_thread(two.stop)
    async with Bus(one.url, two.url, outbox=tmp_path) as bus:
        queue = await attached(bus)
        await eventually(lambda: queue.is_attached)
        assert await push(queue, 2) == [2]


async def test_the_ledger_is_a_key_of_its_own_that_ends_and_forgets_outboxes_that_are_gone(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Bus(server.url, outbox=tmp_path) as bus, Redis.from_url(server.url) as redis:
        queue = await attached(bus)
        await push(queue, 1)
        found = [bytes(key) for key in await redis.keys("bus:queue:orders:*")]  # type: ignore[arg-type]  # bytes
        kinds = {each.rpartition(b":")[2] for each in found}
        assert kinds == {b"metadata", b"messages", b"msgid", b"ledger"}
        assert (await queue.metadata()).keys() == {"ttl", "source", "discover", "maxsize"}
        assert WEEK - 60 < await redis.ttl("bus:queue:orders:ledger") <= WEEK
        now = (await redis.time())[0]
        await redis.hset("bus:queue:orders:ledger", mapping={"old": f"3 9 {now - WEEK - 9}", "new": f"3 9 {now - 99}"})
    async with Bus(server.url, outbox=tmp_path) as bus, Redis.from_url(server.url) as redis:
        await push(await attached(bus), 2)
        names = await redis.hkeys("bus:queue:orders:ledger")
        assert b"new" in names
        assert b"old" not in names
        assert len(names) == 2


async def test_a_ledger_that_is_lost_loses_and_doubles_nothing_that_was_confirmed(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Bus(server.url, outbox=tmp_path) as bus, Redis.from_url(server.url) as redis:
        queue = await attached(bus)
        await push(queue, 1)
        await redis.delete("bus:queue:orders:ledger")
        await push(queue, 2, 3)
        await delivered(bus)
        assert await push(queue, 4) == [4]
    assert await content(server) == [1, 2, 3, 4]


async def test_a_server_that_has_lost_what_it_had_confirmed_gets_what_comes_next(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """As after a failover to a replica that was behind: its ledger is as old as its messages."""
    async with Bus(server.url, outbox=tmp_path) as bus, Redis.from_url(server.url) as redis:
        queue = await attached(bus)
        await push(queue, 1, 2, 3)
        ((source, noted),) = (await redis.hgetall("bus:queue:orders:ledger")).items()
        token, sequence, at = noted.split()
        await redis.hset("bus:queue:orders:ledger", source, f"{int(token)} {int(sequence) - 1} {int(at)}")
        await redis.rpop("bus:queue:orders:messages", 2)
        await redis.set("bus:queue:orders:msgid", 2)
        assert await push(queue, 4) == [0]
        await delivered(bus)
        assert await push(queue, 5) == [4]
    assert await content(server) == [1, 2, 4, 5]


async def test_any_number_of_queues_one_after_the_other_takes_bounded_memory(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "MANY", 3)
    names = [f"q{number}" for number in range(7)]
    async with Bus(server.url, outbox=tmp_path) as bus:
        queues = {name: await attached(bus, name) for name in names}
        destinations = bus.outbox._fallback._destinations  # type: ignore[union-attr]
        for number in range(3):
            for name in names:
                assert await push(queues[name], number) == [number + 1]
                assert len(destinations) <= 3
        await asyncio.to_thread(server.stop)
        for number in range(3, 6):
            for name in names:
                await push(queues[name], number)
        assert len(destinations) == 7
        await asyncio.to_thread(server.start)
        await delivered(bus)
        await push(queues["q0"], 6)
        await push(await attached(bus, "q7"), 0)
    assert [await content(server, name) for name in names] == [[*range(7)], *[[*range(6)]] * 6]
    assert await content(server, "q7") == [0]


@pytest.mark.parametrize("goes", [False, True])
async def test_a_push_that_is_cancelled_while_it_waits_is_not_pushed(
    server: EmbeddedServer, tmp_path: Path, goes: bool
) -> None:
    """Who gives up waiting tries again: both would arrive. Also if the server goes, and the others are stored."""
    async with Bus(server.url, outbox=tmp_path) as bus:
        queue = await attached(bus)
        await push(queue, 1)
        (way,) = bus.outbox._fallback._destinations.values()  # type: ignore[union-attr]
        send, goes_on = way.hop.send, asyncio.Event()

        async def send_later(first: int, messages: Packed) -> None:
            await goes_on.wait()
            if goes:
                raise RedisConnectionError("the server has gone")
            await send(first, messages)

        way.hop.send = send_later  # type: ignore[method-assign]
        under_way = queue.push("2")
        await eventually(lambda: way._sent)
        for waiting in (asyncio.ensure_future(queue.push_many(["8", "9"])), queue.push("9")):
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
        last = queue.push("3")
        goes_on.set()
        assert [await under_way, await last] == ([0, 0] if goes else [2, 3])
        way.hop.send = send  # type: ignore[method-assign]
        await delivered(bus)
    assert await content(server) == [1, 2, 3]


async def test_a_queue_that_has_waited_for_long_goes_on_as_soon_as_its_server_is_back(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of queues that each try every second keep a processor busy: so they wait until a server comes."""
    monkeypatch.setattr(fallback, "OFTEN", 1)
    monkeypatch.setattr(fallback, "AWAY_SECONDS", 3600)
    async with Bus(server.url, outbox=tmp_path) as bus:
        queue = await attached(bus)
        await push(queue, 1)
        await asyncio.to_thread(server.stop)
        await push(queue, 2)
        (way,) = bus.outbox._fallback._destinations.values()  # type: ignore[union-attr]
        tries, meet = 0, way._meet

        async def counted() -> None:
            nonlocal tries
            tries += 1
            await meet()

        way._meet = counted  # type: ignore[method-assign]
        await asyncio.sleep(1)  # timing: nothing may happen
        assert tries <= 4
        await asyncio.to_thread(server.start)
        await delivered(bus)
    assert await content(server) == [1, 2]


async def test_channels_topics_and_services_do_not_use_it(server: EmbeddedServer, tmp_path: Path) -> None:
    async with Bus(server.url, outbox=tmp_path) as bus:
        channel, client, topic = bus.channel("chat"), bus.service("price"), bus.pubsub("news")
        await channel.connect()
        await client.connect()
        lose_patience(bus, 0.3)
        await asyncio.to_thread(server.stop)
        for call in (channel.send("hello"), client.request("tea", timeout=0.2), topic.publish("open")):
            with pytest.raises((Unavailable, RequestTimeout)):
                await call
        assert bus.waiting == 0
    with pytest.raises(WrongCall, match="server of its own"):
        Bus(outbox=tmp_path)


async def test_attach_comes_first(server: EmbeddedServer, tmp_path: Path) -> None:
    async with Bus(server.url, outbox=tmp_path) as bus:
        queue = bus.queue("orders")
        with pytest.raises(WrongCall, match="attach"):
            await queue.push("1")
        attaching = asyncio.create_task(queue.attach())
        await asyncio.sleep(0)
        assert await queue.push("1") == 1
        await attaching
        assert [await each for each in [queue.push("2"), queue.push("3")]] == [2, 3]
        pushes = [queue.push(str(number)) for number in range(4, 2_000)]
        await queue.detach()  # once all pushes are sent
        assert all(each.done() for each in pushes)
    assert await content(server) == [*range(1, 2_000)]


async def test_a_push_waits_for_the_durability_of_the_bus_or_for_the_disk(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """No replica ever confirms: what the server has is kept on disk, too, and is not pushed twice."""
    async with Bus(server.url, outbox=tmp_path / "one", durability="aof") as bus:
        assert await push(await attached(bus), 1) == [1]
    async with Bus(server.url, outbox=tmp_path / "two", durability="replicas:1", patience=0.2) as bus:
        assert await push(await attached(bus), 2, 3) == [0, 0]
        assert bus.waiting == 2
    async with Bus(server.url, outbox=tmp_path / "two") as bus:
        await delivered(bus)
    found = await content(server)
    assert found == [1, 2, 3]


async def test_interop_a_client_of_busmq_notices_nothing(server: EmbeddedServer, tmp_path: Path) -> None:
    """Its reliable consumer gets what has waited like all else; what we push to a queue that it closed creates that."""
    async with node() as program, Redis.from_url(server.url) as redis:
        with FaultyProxy(server.port) as proxy:
            async with (
                Bus(proxy.url, outbox=tmp_path) as bus,
                program.peer("consume", "orders", [server.url], ttl=300, reliable=True) as consumer,
            ):
                await consumer.expect("attached", False)
                queue = await attached(bus)
                await push(queue, 1)
                proxy._port = 1  # where nobody listens
                proxy.cut()
                assert await push(queue, 2, 3) == [0, 0]
                proxy._port = server.port
                await delivered(bus)
                assert await push(queue, 4) == [4]
                await consumer.expect("message", "4", 4)
                assert consumer.events == [
                    ("consuming", True),
                    ("attached", False),
                    *(("message", str(number), number) for number in range(1, 5)),
                ]
                await consumer.send("close")
                await eventually(lambda: _only_the_ledger_is_left(redis))
                assert 0 < await redis.ttl("bus:queue:orders:ledger") <= WEEK
                assert await push(queue, 5) == [0]
                await delivered(bus)
        async with program.peer("consume", "orders", [server.url], reliable=True) as consumer:
            await consumer.expect("attached", True)
            await consumer.expect("message", "5", 1)


async def _only_the_ledger_is_left(redis: "Redis") -> bool:
    """Node's close deletes the keys one after another."""
    return await redis.keys("*") == [b"bus:queue:orders:ledger"]
