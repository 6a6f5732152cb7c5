"""Pushes to a queue that are confirmed by replicas or by the disk before they return."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Gone, NotDurable, Unsuitable, WrongCall
from penstock.bus import Bus
from penstock.bus.move import Mover, Step
from penstock.testing.server import EmbeddedServer
from tests.support.harness import eventually


@pytest.fixture
async def primary() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer(repl_diskless_sync_delay="0") as started:
        yield started


@pytest.fixture
async def replica(primary: EmbeddedServer) -> AsyncIterator[EmbeddedServer]:
    async with replica_of(primary) as started:
        await eventually(lambda: online(primary, 1), 60)
        yield started


def replica_of(primary: EmbeddedServer) -> EmbeddedServer:
    return EmbeddedServer(replicaof=("127.0.0.1", str(primary.port)))


async def online(primary: EmbeddedServer, many: int) -> bool:
    async with Redis.from_url(primary.url) as redis:
        found = await redis.info("replication")
    return [found[f"slave{place}"]["state"] for place in range(found["connected_slaves"])] == ["online"] * many


async def bodies(server: EmbeddedServer) -> list[bytes]:
    async with Redis.from_url(server.url) as redis:
        words = await redis.lrange("bus:queue:orders:messages", 0, -1)
    return [bytes(word) for word in words[1::2]]  # type: ignore[arg-type]  # bytes


@pytest.mark.parametrize("durability", ["replicas:1", "replicas:majority"])
async def test_a_push_returns_once_the_replica_has_it(
    primary: EmbeddedServer, replica: EmbeddedServer, durability: str
) -> None:
    async with Bus(primary.url, durability=durability) as bus:
        queue = bus.queue("orders")
        await queue.attach(ttl=60)
        assert await queue.push("a") == 1
        assert await bodies(replica) == [b"a"]
        assert await queue.push_many(str(number) for number in range(1_200)) == [*range(2, 1_202)]
        assert len(await bodies(replica)) == 1_201
        assert await asyncio.gather(*(queue.push("z") for _ in range(300))) == [*range(1_202, 1_502)]
        async with Redis.from_url(primary.url) as redis:
            waits = (await redis.info("commandstats"))["cmdstat_wait"]["calls"]
        assert 5 <= waits <= 10  # one a batch


async def test_a_push_raises_while_the_replica_hangs_and_holds_up_nothing_else(
    primary: EmbeddedServer, replica: EmbeddedServer
) -> None:
    async with Bus(primary.url, durability="replicas:1", patience=1.5) as bus:
        queue = bus.queue("orders")
        await queue.attach(ttl=60)
        await queue.push("a")
        os.kill(replica.pid, signal.SIGSTOP)
        try:
            pushing = asyncio.ensure_future(queue.push("b"))
            await eventually(lambda: has(primary, 2))
            taken = [message.body async for message in queue.consume(limit=2)]
            assert (taken, pushing.done()) == ([b"a", b"b"], False)
            with pytest.raises(NotDurable, match="on 0 of 1 replicas"):
                await pushing
            with pytest.raises(NotDurable):
                await queue.push_many(["c", "d"])
        finally:
            os.kill(replica.pid, signal.SIGCONT)
        assert await bodies(primary) == [b"c", b"d"]
        assert await queue.push("e") == 5
        assert await bodies(replica) == [b"c", b"d", b"e"]


async def has(server: EmbeddedServer, many: int) -> bool:
    return len(await bodies(server)) == many


async def test_a_push_without_any_replica_raises_after_the_bound(primary: EmbeddedServer) -> None:
    async with Bus(primary.url, durability="replicas:majority", patience=0.5) as bus:
        queue = bus.queue("orders")
        await queue.attach(ttl=60)
        with pytest.raises(NotDurable, match="on 0 of 1 replicas"):
            await queue.push("a")


async def test_a_push_whose_connection_is_lost_before_the_replica_confirms_it_raises(
    primary: EmbeddedServer, replica: EmbeddedServer
) -> None:
    async with Bus(primary.url, durability="replicas:1", patience=20) as bus:
        queue = bus.queue("orders")
        await queue.attach(ttl=60)
        os.kill(replica.pid, signal.SIGSTOP)
        try:
            pushing = asyncio.ensure_future(queue.push("a"))
            async with Redis.from_url(primary.url) as redis:
                await eventually(lambda: has(primary, 1))
                await redis.client_kill_filter(_type="normal", skipme=True)
            with pytest.raises(NotDurable, match="connection was lost"):
                await pushing
        finally:
            os.kill(replica.pid, signal.SIGCONT)
        assert await queue.push("b") == 2


async def test_with_aof_a_push_returns_once_the_disk_has_it() -> None:
    async with EmbeddedServer(aof=True, appendfsync="everysec") as server:
        async with Bus(server.url, durability="aof") as bus:
            queue = bus.queue("orders")
            await queue.attach(ttl=600)
            assert await queue.push("a") == 1
            assert await queue.push_many(["b", "c"]) == [2, 3]
            async with Redis.from_url(server.url) as redis:
                assert (await redis.info("commandstats"))["cmdstat_waitaof"]["calls"] == 2
            server.kill()
            server.start()
        assert await bodies(server) == [b"a", b"b", b"c"]


async def test_aof_is_refused_by_a_server_that_writes_no_log(primary: EmbeddedServer) -> None:
    async with Bus(primary.url, durability="aof") as bus:
        queue = bus.queue("orders")
        await queue.attach(ttl=60)
        with pytest.raises(Unsuitable, match="durability aof"):
            await queue.push("a")


async def moved_away(source: Redis) -> bool:
    """Return whether the source has given the queue away, and not deleted it yet."""
    ticket = await source.hget("bus:queue:orders:metadata", "moving")
    return bool(ticket and bytes(ticket).startswith(b"handed"))  # type: ignore[arg-type]  # bytes


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_queue_that_is_moved_stays_at_its_server_until_the_replica_of_the_other_has_it(
    primary: EmbeddedServer, replica: EmbeddedServer, is_lost: bool
) -> None:
    async with (
        EmbeddedServer() as former,
        Bus(former.url) as alone,
        Redis.from_url(former.url) as source,
        Redis.from_url(primary.url) as target,
        Bus(former.url, primary.url, durability="replicas:1", patience=1) as bus,
    ):
        queue = alone.queue("orders")
        await queue.attach(ttl=600)
        await queue.push_many(["a", "b"])
        step = Step("orders", bus.instances[0], bus.instances[1])
        os.kill(replica.pid, signal.SIGSTOP)
        try:
            with pytest.raises(NotDurable):
                await Mover(bus).move(step)
        finally:
            os.kill(replica.pid, signal.SIGCONT)
        assert await moved_away(source)
        if is_lost:  # as by a failover to a replica that had nothing of it
            await target.flushall()
            with pytest.raises(Gone, match="has lost"):
                await Mover(bus).move(step)
            assert await bodies(former) == [b"a", b"b"]
        mover = Mover(bus)
        await mover.move(step)
        assert (mover.moved.queues, await bodies(primary), await bodies(replica)) == (1, [b"a", b"b"], [b"a", b"b"])
        assert await source.keys("bus:queue:*") == []


@pytest.mark.parametrize("durability", ["", "disk", "replicas:0", "replicas:x", "aof\n"])
def test_durability_of_another_form_is_refused(durability: str) -> None:
    with pytest.raises(WrongCall, match="durability="):
        Bus("redis://localhost", durability=durability)
