"""Defects of mpush-redis that must not occur here, by their numbers in the inventory.

Of the others, D08 to D13 and D16 to D18 are in test_tracking_defects.py: mpush tracks no messages. What is no defect of
mpush alone is tried with each service in ``tests/reliability``, and D02, D03, D05 and D07 in test_registry.py.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from penstock.testing.server import EmbeddedServer
from tests.support.harness import Service, until
from tests.support.membership import KEYS
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


def test_mp_d25_no_command_is_used_that_is_deprecated(mpush: Start, client: "Redis") -> None:
    client.config_resetstat()
    service = mpush()
    client.lpush("in", "one")
    until(lambda: client.llen("b") == 1)
    assert service.stop() == 0
    sent = set(commands(client))
    assert "blmove" in sent
    assert not {"brpoplpush", "rpoplpush", "hmset", "getset", "setex", "setnx", "psetex"} & sent
