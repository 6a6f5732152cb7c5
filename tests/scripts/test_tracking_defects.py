"""Defects of mpush-redis with tracked messages that must not occur here, by number.

D14 and D19 to D22 are in tests/process/test_mpush_defects.py, too. D08, D09, D13 and D18 are what the model of tracking
tries (``tracking_model.py``). D11 and D16, of monitors that die or act at once, are in ``test_tracking_done.py``
and ``test_tracking_sweep.py``.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from penstock.testing.server import EmbeddedServer
from tests.support.harness import PATIENCE, Service, until
from tests.support.hop import Hop, Start
from tests.support.servers import commands

NAMES = {"redis_namespace": "demo", "in_": "in", "pending": "pending", "out": "out"}
Compose = Callable[..., list[Service]]


@pytest.fixture
def client(redis: Any, server: EmbeddedServer) -> Iterator["Redis"]:
    with Redis(port=server.port, protocol=2) as connected:
        yield connected


@pytest.fixture
def composed(client: "Redis", redis_url: str, tmp_path: Path) -> Iterator[Compose]:
    """Yield a function that starts mdispatch and ``monitors`` monitors, and waits until all are idle."""
    started: list[Service] = []

    def start(monitors: int, **more: Any) -> list[Service]:
        watching: dict[str, object] = {"redis_namespace": "watcher", "watch": "demo", "metrics_port": 0}
        services = [
            Service("mdispatch", tmp_path / "mdispatch", redis=redis_url, **{**NAMES, **more}),
            *(Service("monitor", tmp_path / f"monitor {id}", redis=redis_url, **watching) for id in range(monitors)),
        ]
        started.extend(service.start() for service in services)
        until(lambda: client.info("clients")["blocked_clients"] == 1 + monitors)
        return services

    yield start
    for service in started:
        service.__exit__(None, None, None)


def test_mp_d10_a_done_is_taken_at_once(composed: Compose, client: "Redis") -> None:
    composed(1)
    end = time.monotonic() + PATIENCE
    for _ in range(20):
        client.lpush("in", "12345")
        until(lambda: client.exists("demo:message:xid:12345"), every=0.0005)
        client.lpush("demo:done", "12345")
        until(lambda: not client.exists("demo:message:xid:12345"), every=0.0005)
    assert time.monotonic() < end, "not after its popTimeout of 30 s"


async def test_mp_d12_a_burst_of_expired_ids_is_done_with_as_any_other(start: Start) -> None:
    hop = await start()
    await hop.push_done_batch(*(str(id) for id in range(10_000)))
    assert await hop.counts() == {"done:unknown": 10_000}
    await hop.push(*[b"hello"] * 5_000)
    await hop.redis.delete(*(hop.keys.message(str(id)) for id in range(1, 5_001)))
    await hop.push_done_batch(*(str(id) for id in range(1, 5_001)))
    assert (await hop.counts())["done:unknown"] == 15_000


def is_seen(client: "Redis") -> bool:
    """Return True if monitors have known for a second that one message was taken."""
    looks: Any = client.hget("demo:message:looks", "out")
    number, _, moment = (looks or b"0:0").split()[-1].partition(b":")
    return bool(number == b"1") and time.time() - float(moment) > 1


def is_quiet(client: "Redis") -> bool:
    """Return True if no command was sent for 0.2 s."""
    before = commands(client)
    time.sleep(0.2)  # timing: between two looks
    return commands(client) == before


@pytest.mark.slow
def test_mp_d14_d15_with_registrations_elsewhere_time_outs_are_found_and_idle_services_ask_next_to_nothing(
    composed: Compose, client: "Redis", redis_url: str
) -> None:
    """Three monitors with one message in flight send fewer than 6 commands a second, as the issue asks."""
    services = composed(3, service_redis=redis_url.replace("/0", "/1"), message_timeout=8)
    client.lpush("in", "hello")
    until(lambda: client.rpop("out") == b"hello")
    until(lambda: is_seen(client) and is_quiet(client))  # all monitors have seen it
    processes = [psutil.Process(service.pid) for service in services]
    client.config_resetstat()
    began, used = time.monotonic(), sum(sum(process.cpu_times()[:2]) for process in processes)
    until(lambda: time.monotonic() - began > 2.5, every=0.1)
    seconds = time.monotonic() - began
    sent = commands(client)
    assert sum(sent.values()) / seconds < 6 + 2, sent  # 2 for mdispatch
    assert (sum(sum(process.cpu_times()[:2]) for process in processes) - used) / seconds < 0.2
    until(lambda: client.hget("demo:metrics:timeout", "count") == b"1")
    assert float(client.hget("demo:metrics:timeout", "max") or 0) < 9


async def test_mp_d17_each_leg_of_a_fan_out_is_tracked_by_itself(redis: Any) -> None:
    """Each branch has its own mdispatch, so a worker's report ends the message on its own branch only."""
    first = await Hop(redis, message_timeout=10, attempts=1).start()
    names: dict[str, Any] = {"in_": "in1", "pending": "pending1", "out": "out1", "res": "res1"}
    second = await Hop(redis, namespace="other", **names, message_timeout=10, attempts=1).start()
    await asyncio.gather(first.push(b"hello"), second.push(b"hello"))
    await first.push_done("1")
    assert await second.in_flight() == ["1"]
    await second.advance(10)
    await second.sweep()
    await first.sweep()
    assert await first.counts() == {"taken": 1, "delivered": 1, "registered": 1, "done": 1}
    assert await second.counts() == {"taken": 1, "delivered": 1, "registered": 1, "timeout": 1, "dead": 1}
