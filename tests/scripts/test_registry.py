"""The registry of live instances: its keys, their TTLs, and which changes are orders to stop."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError
from structlog.testing import capture_logs

from common.neighbours import process
from common.registry import LUA, Presence, Registry
from penstock import __version__
from penstock.base.errors import WrongType
from penstock.core.connection import connect
from penstock.core.script import Script
from penstock.testing.server import EmbeddedServer
from tests.support.clock import Span
from tests.support.harness import eventually
from tests.support.membership import KEYS, registered, registry, settings
from tests.support.tracked import now

REGISTER, RENEW, COMPACT, DEREGISTER = (
    Script.read(LUA / f"{verb}.lua") for verb in ("register", "renew", "compact", "deregister")
)


async def listed(redis: Redis) -> list[int]:
    return [int(id) for id in await redis.lrange(KEYS.ids, 0, -1)]


async def test_an_instance_is_registered_with_what_an_operator_asks_for(redis: Redis) -> None:
    await redis.set(KEYS.counter, 8)
    before, _ = await redis.time()
    instance = await registered(redis)
    assert instance.id == "9"
    fields = await redis.hgetall("demo:mpush:9")
    started = fields[b"started"]
    assert fields.pop(b"process", b"") == process(os.getpid()).encode()
    assert list(fields.items()) == [
        (b"host", socket.gethostname().encode()),
        (b"pid", str(os.getpid()).encode()),
        (b"started", started),
        (b"renewed", started),
        (b"renew", b"15"),
        (b"service", b"mpush"),
        (b"version", __version__.encode()),
    ]
    assert before <= int(started) <= (await redis.time())[0]
    assert await listed(redis) == [9]


async def test_an_instance_whose_process_has_ended_on_this_machine_is_dead_at_once(redis: Redis) -> None:
    gone, living, far = [await registered(redis, pid) for pid in (1, 2, 3)]
    other = await asyncio.create_subprocess_exec("sleep", "3600")
    await redis.hset(gone.key, "process", process(other.pid))
    await redis.hset(far.key, "process", "another boot/pid:[1]/7/17")
    successor = await registered(redis)
    assert successor.alive == {gone.id, living.id, far.id}
    assert not successor.lost_neighbour
    other.kill()
    await other.wait()
    assert successor.lost_neighbour
    assert await successor.dead([gone.id, living.id, far.id]) == [gone.id]
    assert await redis.exists(gone.key, living.key, far.key) == 2
    await successor.compact()
    assert successor.alive == {living.id, far.id}
    assert not successor.lost_neighbour


@pytest.mark.parametrize("expire", [30, 60, 600])
async def test_a_registration_lives_as_long_as_is_set(redis: Redis, expire: int) -> None:
    began = await now(redis)
    instance = await registered(redis, service_expire=expire)
    assert await redis.pttl(instance.key) / 1000 == expire - Span(0, await now(redis) - began)


async def test_the_newest_instance_is_at_the_head_and_the_list_has_its_capacity_exactly(redis: Redis) -> None:
    for _ in range(12):
        instance = await registered(redis)
    assert await listed(redis) == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]
    assert instance.id == "12"
    assert await redis.exists(*(KEYS.instance(str(id)) for id in range(1, 13))) == 12


async def test_a_living_instance_that_was_pushed_off_the_list_comes_back_when_there_is_room(redis: Redis) -> None:
    """MP-D07: the original drops the oldest live instances for good."""
    first, second, third = [await registered(redis, service_capacity=2) for _ in range(3)]
    assert await first.renew() is Presence.HERE
    assert await listed(redis) == [3, 2]
    await third.deregister()
    assert await first.renew() is Presence.HERE
    assert await listed(redis) == [2, 1]
    assert await second.renew() is Presence.HERE
    assert await listed(redis) == [2, 1]


async def test_renewal_restores_the_life_and_says_when(redis: Redis) -> None:
    instance = await registered(redis)
    await redis.expire(instance.key, 7)
    await redis.hset(instance.key, mapping={"renewed": 1, "started": 5})
    began = await now(redis)
    assert await instance.renew() is Presence.HERE
    ttl = await redis.pttl(instance.key) / 1000
    renewed, started = await redis.hmget(instance.key, "renewed", "started")
    ended = await now(redis)
    assert ttl == 60 - Span(0, ended - began)
    assert int(renewed or 0) == Span(int(began), ended)
    assert started == b"5"


async def test_renewal_never_brings_a_registration_back(redis: Redis) -> None:
    """MP-D05: the original's HSET created a registration without a TTL."""
    instance = await registered(redis)
    await redis.delete(instance.key)
    assert await instance.renew() is Presence.DELETED
    assert await instance.renew() is Presence.DELETED
    assert not await redis.exists(instance.key)


async def test_no_registration_is_ever_without_a_ttl_however_renewal_and_deletion_interleave(
    redis: Redis, redis_url: str
) -> None:
    instance = await registered(redis)
    async with Redis.from_url(redis_url) as operator:
        for _ in range(50):
            await asyncio.gather(instance.renew(), operator.delete(instance.key), instance.renew())
            assert not await redis.exists(instance.key)
            await instance.register()


async def test_looking_finds_a_deleted_registration_at_once(redis: Redis) -> None:
    instance = await registered(redis)
    assert await instance.check() is Presence.HERE
    await redis.delete(instance.key)
    assert await instance.check() is Presence.DELETED


async def test_a_registration_that_somebody_overwrote_is_not_called_deleted(redis: Redis) -> None:
    for look in (Registry.check, Registry.renew):
        instance = await registered(redis)
        await redis.hset(instance.key, "pid", 999)
        assert await look(instance) is Presence.DELETED
        assert instance.gone == f"overwritten by pid 999 on {socket.gethostname()}"
        await redis.delete(instance.key)
        assert await look(instance) is Presence.DELETED
        assert instance.gone == "deleted"


async def test_a_name_that_is_taken_is_not_taken_again(redis: Redis) -> None:
    """MP-37: two instances never share a registration, even if a restore or an operator sets back the counter."""
    first = await registered(redis, pid=1)
    await redis.set(KEYS.counter, 0)
    await redis.set(KEYS.instance("2"), "somebody's")
    second = await registered(redis, pid=2)
    assert (first.id, second.id) == ("1", "3")
    assert await redis.hget(first.key, "pid") == b"1"
    assert await redis.get(KEYS.instance("2")) == b"somebody's"
    assert await listed(redis) == [3, 1]


async def test_a_list_of_ids_of_another_type_is_named_and_nothing_is_registered(redis: Redis) -> None:
    await redis.hset(KEYS.ids, "field", "value")
    with pytest.raises(WrongType, match=r"^demo:mpush:ids holds a hash, expected a list$"):
        await registered(redis)
    assert not await redis.exists(KEYS.instance("1"))


async def test_a_registration_that_another_process_has_counts_as_gone(redis: Redis) -> None:
    mine = await registered(redis, pid=1)
    await mine.deregister()
    await redis.set(KEYS.counter, 0)
    theirs = await registered(redis, pid=2)
    await redis.hset(theirs.key, "renewed", 1)
    assert mine.key == theirs.key
    assert await mine.renew() is Presence.DELETED
    assert await redis.hmget(theirs.key, "pid", "renewed") == [b"2", b"1"]
    assert await theirs.renew() is Presence.HERE
    await mine.deregister()
    assert await theirs.check() is Presence.HERE
    assert await listed(redis) == [1]


async def test_the_dead_leave_the_list_and_the_living_stay(redis: Redis) -> None:
    """MP-D02 and MP-D03: the original never compacted, and would have removed the live ids instead of the dead."""
    instances = [await registered(redis) for _ in range(6)]
    for dead in (0, 2, 5):
        await redis.delete(instances[dead].key)
    assert await listed(redis) == [6, 5, 4, 3, 2, 1]
    await registered(redis)
    assert await listed(redis) == [7, 5, 4, 2]


@pytest.mark.parametrize("when", ["renew", "leave"])
async def test_the_list_is_compacted_on_renewal_and_on_the_way_out(redis: Redis, when: str) -> None:
    instance, other, third = [await registered(redis) for _ in range(3)]
    await redis.delete(other.key)
    await (instance.renew() if when == "renew" else instance.deregister())
    assert await listed(redis) == ([3, 1] if when == "renew" else [3])
    assert third.id == "3"


async def test_ids_that_were_listed_twice_or_never_lived_go_too(redis: Redis) -> None:
    await redis.rpush(KEYS.ids, 1, 2, 1, 3)
    await redis.set(KEYS.counter, 3)
    await registered(redis)
    assert await listed(redis) == [4]


async def test_on_the_way_out_one_registration_and_one_id_are_removed(redis: Redis) -> None:
    """MP-D04: the original's log always said ``lrem: 0``."""
    with capture_logs() as logs:
        instance = await registered(redis)
        await instance.deregister()
    (ended,) = [line for line in logs if line["event"] == "ended"]
    assert (ended["key"], ended["del"], ended["lrem"]) == (KEYS.instance("1"), 1, 1)
    assert not await redis.exists(KEYS.ids, KEYS.instance("1"))
    named = {"instance": instance.key, "ids": KEYS.ids, "id": "1", "host": socket.gethostname(), "pid": os.getpid()}
    assert await DEREGISTER(redis, **named) == [0, 0]


def short_lived(redis: Redis) -> Registry:
    """Return a registry with a TTL of one second, less than settings allow."""
    instance = registry(redis)
    instance.settings = instance.settings.model_copy(update={"service_expire": 1})
    return instance


async def test_a_registration_that_ran_out_is_no_order_to_stop(redis: Redis) -> None:
    """Expired by the server's clock, so the process, or its machine, may have slept."""
    instance = short_lived(redis)
    await instance.register()
    await until_gone(redis, instance)
    assert await instance.check() is Presence.LOST
    assert await instance.renew() is Presence.LOST
    instance.settings = settings()
    assert await instance.register() == "2"
    await redis.delete(instance.key)
    assert await instance.check() is Presence.DELETED


async def until_gone(redis: Redis, instance: Registry) -> None:
    while await redis.exists(instance.key):
        await asyncio.sleep(0.02)


async def test_an_attempt_to_register_anew_that_is_refused_is_no_order_to_stop() -> None:
    with EmbeddedServer() as server:
        async with connect(server.url) as redis:
            instance = short_lived(redis)
            await instance.register()
            await until_gone(redis, instance)
            await redis.replicaof("127.0.0.1", "1")
            for _ in range(2):
                with pytest.raises(ReadOnlyError):
                    await instance.register()
                assert await instance.check() is Presence.LOST
            await redis.replicaof("NO", "ONE")
            assert int(await instance.register()) > 1


async def test_a_registration_that_is_gone_after_a_refused_renewal_is_no_order_to_stop() -> None:
    """A master that has been a replica may hold another server's data."""
    with EmbeddedServer() as server:
        async with connect(server.url) as redis:
            instance = await registered(redis)
            await redis.replicaof("127.0.0.1", "1")
            with pytest.raises(ReadOnlyError):
                await instance.renew()
            await redis.replicaof("NO", "ONE")
            await redis.delete(instance.key)
            assert await instance.check() is Presence.LOST


async def test_on_a_full_server_an_instance_registers_and_renews_and_a_deletion_is_an_order_to_stop(
    redis: Redis, fill: Callable[[], Awaitable[object]]
) -> None:
    await fill()
    instance = await registered(redis)
    await redis.expire(instance.key, 7)
    assert await instance.renew() is Presence.HERE
    assert await redis.ttl(instance.key) > 7
    await redis.delete(instance.key)
    assert await instance.check() is Presence.DELETED


async def test_a_registration_that_the_server_has_evicted_is_no_order_to_stop() -> None:
    with EmbeddedServer(maxmemory_policy="volatile-lru") as server:
        async with connect(server.url) as redis:
            instance = await registered(redis)
            await redis.config_set("maxmemory", 1)
            with suppress(OutOfMemoryError):
                await redis.set("text", "t")
            assert not await redis.exists(instance.key)
            assert await instance.check() is Presence.LOST


async def test_a_server_that_lost_everything_is_no_order_to_stop() -> None:
    with EmbeddedServer() as server:
        async with connect(server.url) as redis:
            instance = await registered(redis)
            server.restart()
            await redis.connection_pool.disconnect()
            assert await instance.check() is Presence.LOST
            assert await instance.renew() is Presence.LOST
            assert await instance.register() == "1"
            await redis.delete(instance.key)
            assert await instance.check() is Presence.DELETED


async def test_a_failover_to_a_server_that_did_not_have_it_yet_is_no_order_to_stop() -> None:
    with EmbeddedServer() as server, EmbeddedServer(repl_diskless_sync_delay="0") as promoted:
        async with connect(server.url) as redis:
            instance = await registered(redis)
            await redis.replicaof("127.0.0.1", str(promoted.port))

            async def is_synchronous() -> bool:
                return bool((await redis.info("replication"))["master_link_status"] == "up")

            await eventually(is_synchronous)
            assert await instance.check() is Presence.LOST


async def test_a_registration_outlives_a_server_that_keeps_it() -> None:
    with EmbeddedServer(aof=True) as server:
        async with connect(server.url) as redis:
            instance = await registered(redis)
            server.restart()
            await redis.connection_pool.disconnect()
            assert await instance.renew() is Presence.HERE
            await redis.delete(instance.key)
            assert await instance.renew() is Presence.DELETED


async def test_many_instances_that_start_at_once_have_different_ids(redis: Redis, redis_url: str) -> None:
    clients = [connect(redis_url) for _ in range(20)]
    ids = await asyncio.gather(*(registry(client, pid).register() for pid, client in enumerate(clients)))
    assert sorted(map(int, ids)) == list(range(1, 21))
    assert len(set(await listed(redis))) == 10
    for client in clients:
        await client.aclose()


async def test_a_renewal_says_what_the_instance_waits_for_and_the_next_one_that_it_does_not(redis: Redis) -> None:
    instance = await registered(redis)
    await instance.renew(trouble="no replica")
    assert await redis.hget(instance.key, "waiting") == b"no replica"
    await instance.renew()
    assert not await redis.hexists(instance.key, "waiting")


@pytest.mark.parametrize("compact", [True, False])
async def test_a_deletion_after_an_unnoticed_restart_is_an_order_to_stop(redis: Redis, compact: bool) -> None:
    """A server with registrations only may restart unnoticed, as the run goes on while it is away."""
    instance = await registered(redis)
    instance._server = "another server 0"
    assert await instance.renew(compact=compact) is Presence.HERE
    await redis.delete(instance.key)
    assert await instance.check() is Presence.DELETED
