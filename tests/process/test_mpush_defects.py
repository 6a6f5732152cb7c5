"""Defects of mpush-redis that must not occur here: MP-D01 to MP-D25 of the inventory, by number.

D08 to D13 and D16 to D18 are about the tracking of messages, which mpush does not do: see test_tracking_defects.py.
"""

import asyncio
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from common.registry import Presence
from penstock.base.encoding import decoded
from penstock.core.metrics import observe
from penstock.testing.server import EmbeddedServer
from tests.support.given import one
from tests.support.harness import ROOT, Service, until
from tests.support.membership import KEYS, registered
from tests.support.servers import commands

NAMES = {"in_": "in", "pending": "pending", "out": ["a", "b"], "redis_namespace": KEYS.namespace}
Start = Callable[..., Service]


@pytest.fixture
def client(redis: Any, server: EmbeddedServer) -> Iterator["Redis"]:
    with Redis(port=server.port, protocol=2) as connected:
        yield connected


@pytest.fixture
def mpush(client: "Redis", redis_url: str, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts mpush and waits until it is idle."""
    started: list[Service] = []

    def start(**more: Any) -> Service:
        service = Service("mpush", tmp_path / "log", **{**NAMES, "redis": redis_url, **more})
        started.append(service.start())
        until(lambda: client.info("clients")["blocked_clients"])
        return service

    yield start
    for service in started:
        service.__exit__(None, None, None)


def test_mp_d01_a_message_that_a_crash_left_in_pending_is_delivered_once_to_each(mpush: Start, client: "Redis") -> None:
    client.set(KEYS.counter, 1)
    client.zadd(KEYS.owners, {"1": 1})
    client.lpush("pending:1", "taken by a dead instance")
    client.lpush("pending", "taken by the original")
    mpush()
    expected = [b"taken by a dead instance", b"taken by the original"]
    assert client.lrange("a", 0, -1) == client.lrange("b", 0, -1) == expected
    assert not client.exists("pending", "pending:1", "pending:2")


def test_mp_d01_a_message_left_in_pending_without_a_namespace_is_delivered_as_well(
    mpush: Start, client: "Redis"
) -> None:
    client.lpush("pending", "left")
    mpush(redis_namespace="")
    assert client.lrange("a", 0, -1) == client.lrange("b", 0, -1) == [b"left"]
    assert not client.exists("pending")


def test_mp_d02_d03_a_new_instance_takes_the_dead_off_the_list_and_leaves_the_living(
    mpush: Start, client: "Redis"
) -> None:
    client.set(KEYS.counter, 3)
    client.lpush(KEYS.ids, 1, 2, 3)
    client.hset(KEYS.instance("2"), "host", "elsewhere")
    mpush()
    assert client.lrange(KEYS.ids, 0, -1) == [b"4", b"2"]


def test_mp_d04_a_stopped_instance_is_on_no_list_and_its_log_says_so(mpush: Start, client: "Redis") -> None:
    service = mpush()
    assert service.stop() == 0
    assert not client.exists(KEYS.ids)
    (ended,) = [line for line in map(json.loads, service.log_text().splitlines()) if line["event"] == "ended"]
    assert (ended["del"], ended["lrem"]) == (1, 1)


async def test_mp_d05_an_expired_registration_does_not_come_back_without_a_life(redis: AsyncRedis) -> None:
    instance = await registered(redis)
    await redis.pexpire(instance.key, 1)
    while await redis.exists(instance.key):
        await asyncio.sleep(0.001)
    assert await instance.renew() is Presence.DELETED
    assert not await redis.exists(instance.key)


def test_mp_d06_a_forced_exit_comes_in_time_and_is_logged(client: "Redis", redis_url: str) -> None:
    never_ends = """
import asyncio
from common import main
from services.mpush.settings import Settings

async def run(context):
    await context.redis.set("it runs", 1)
    while True:
        await asyncio.sleep(60)

main(Settings, run)
"""
    settings = {"REDIS": redis_url, "MPUSH_IN": "in", "MPUSH_PENDING": "pending", "MPUSH_OUT": "a,b"}
    settings |= {"MPUSH_REDIS_NAMESPACE": KEYS.namespace, "MPUSH_STOP_TIMEOUT": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", never_ends], env=settings, stderr=subprocess.PIPE)
    until(lambda: client.exists("it runs"))
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert 1 <= time.monotonic() - asked < 15
    assert b'"event": "did not stop in time"' in said


async def test_mp_d07_more_live_instances_than_the_list_holds_are_all_alive(redis: AsyncRedis) -> None:
    instances = [await registered(redis) for _ in range(12)]
    assert [await instance.renew() for instance in instances] == [Presence.HERE] * 12
    for instance in instances[2:]:
        await instance.deregister()
    assert [await instance.renew() for instance in instances[:2]] == [Presence.HERE] * 2
    assert sorted(await redis.lrange(KEYS.ids, 0, -1)) == [b"1", b"2"]


def test_mp_d14_the_original_sample_with_registrations_in_another_database_works(
    mpush: Start, client: "Redis", redis_url: str, server: EmbeddedServer
) -> None:
    with Redis(port=server.port, db=1) as registry:
        registry.flushdb()
        service = mpush(service_redis=redis_url.replace("/0", "/1"))
        client.lpush("in", "one")
        assert client.blpop(["a"], 10) == (b"a", b"one")
        assert set(registry.keys()) == {b"demo:mpush:id", b"demo:mpush:ids", b"demo:mpush:1"}
        metrics = {KEYS.metric(name) for name in ("start", "taken", "settled", "delivered")}
        assert set(map(decoded, client.keys())) == {
            *("b", KEYS.owners, KEYS.holdings, KEYS.lists, KEYS.shape, *KEYS.directories, *metrics)
        }
        registry.delete("demo:mpush:1")
        assert service.wait() == 0
        assert registry.keys() == [b"demo:mpush:id"]
        registry.flushdb()


def test_mp_d15_a_service_with_a_message_in_flight_asks_next_to_nothing_of_the_server_and_of_the_processor(
    mpush: Start, client: "Redis"
) -> None:
    """Send fewer than 2 commands a second (DESIGN); the original sends thousands with one message in flight."""
    service = mpush()
    client.lpush("in", "waits at its subscribers")
    until(lambda: client.llen("b") == 1)
    process = psutil.Process(service.pid)
    client.config_resetstat()
    began, used = time.monotonic(), sum(process.cpu_times()[:2])
    until(lambda: time.monotonic() - began > 3, every=0.1)
    seconds = time.monotonic() - began
    sent = commands(client)
    assert sum(sent.values()) / seconds < 4, sent
    assert (sum(process.cpu_times()[:2]) - used) / seconds < 0.1


async def test_mp_d19_of_two_that_measure_at_once_the_larger_is_the_maximum(redis: AsyncRedis, redis_url: str) -> None:
    async def measure(client: AsyncRedis, *values: int) -> None:
        for value in values:
            async with client.pipeline() as transaction:
                observe(transaction, KEYS.metric("wait"), value, 10)
                await transaction.execute()

    async with AsyncRedis.from_url(redis_url) as other:
        await asyncio.gather(measure(redis, *range(50)), measure(other, *range(49, -1, -1)))
    assert await redis.hget(KEYS.metric("wait"), "max") == b"49"


def test_mp_d20_what_was_delivered_is_counted_even_if_the_service_dies_at_once(mpush: Start, client: "Redis") -> None:
    service = mpush()
    for start in range(0, 5000, 100):
        client.lpush("in", *range(start, start + 100))
    service.kill()
    delivered = client.llen("a")
    taken = client.hgetall(KEYS.metric("taken")) | {b"count": client.hget(KEYS.metric("settled"), "count") or 0}
    assert [int(taken.get(field, 0)) for field in (b"count", b"a", b"b")] == [delivered, delivered, client.llen("b")]
    assert int(client.hget(KEYS.metric("delivered"), "count") or 0) == 2 * delivered


@pytest.mark.parametrize("wrong", ["a", "b"])
def test_mp_d21_a_wrong_type_at_one_subscriber_delivers_to_nobody(mpush: Start, client: "Redis", wrong: str) -> None:
    service = mpush()
    client.set(wrong, "no list")
    client.lpush("in", "one", "two")
    until(lambda: f"{wrong} holds a string, expected a list" in service.log_text())
    right = "b" if wrong == "a" else "a"
    assert not client.exists(right)
    assert client.llen("in") + client.llen("pending:1") == 2
    client.delete(wrong)
    until(lambda: client.llen(wrong) == 2)
    assert client.lrange("a", 0, -1) == client.lrange("b", 0, -1) == [b"two", b"one"]
    assert client.hget(KEYS.metric("error"), "count") == b"1"


def test_mp_d22_no_message_is_looked_for_by_its_value_or_sent_to_the_server_again(
    mpush: Start, client: "Redis"
) -> None:
    large = ["x" * 1024] * 2000
    client.lpush("pending", *large)
    client.lpush("in", *large)
    client.config_resetstat()
    mpush(redis_namespace="")
    assert client.llen("a") == client.llen("b") == 4000
    assert "lrem" not in commands(client)
    assert client.info("stats")["total_net_input_bytes"] < 200_000


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 4.5, "ten", "", None, True, [10]])
def test_mp_d23_a_number_that_is_none_is_refused_by_name(value: object) -> None:
    assert one(pop_timeout=value).startswith("popTimeout: ")


def test_mp_d23_a_zero_is_a_value_and_is_refused_with_the_reason() -> None:
    assert "expected a whole number" in one(max_length=0)


def test_mp_d24_an_interrupt_stops_a_service_and_a_restarted_server_does_not(tmp_path: Path) -> None:
    with EmbeddedServer(aof=True) as server, Redis(port=server.port) as client:
        with Service("mpush", tmp_path / "log", redis=server.url, **NAMES) as service:
            until(lambda: client.info("clients")["blocked_clients"])
            server.restart()
            client.lpush("in", "after the restart")
            until(lambda: client.llen("b") == 1)
            service.signal(signal.SIGINT)
            assert service.wait() == 0
        assert not client.exists(KEYS.ids, KEYS.instance("1"))


def test_mp_d25_no_command_is_used_that_is_deprecated(mpush: Start, client: "Redis") -> None:
    client.config_resetstat()
    service = mpush()
    client.lpush("in", "one")
    until(lambda: client.llen("b") == 1)
    assert service.stop() == 0
    sent = set(commands(client))
    assert "blmove" in sent
    assert not {"brpoplpush", "rpoplpush", "hmset", "getset", "setex", "setnx", "psetex"} & sent
