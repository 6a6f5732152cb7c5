"""The container's health check: whether this very process is registered."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from tests.harness import ROOT, Service, until

LOOK = """
import asyncio, sys
from common.health import registered, services
(found,) = [each for each in services() if each[0] == int(sys.argv[1])]
sys.exit(not asyncio.run(registered(*found)))
"""


def well(service: Service) -> bool:
    """What the check says of it; other services may run on this machine, so that it cannot be asked of all."""
    looked = subprocess.run([sys.executable, "-c", LOOK, str(service.pid)], cwd=ROOT, capture_output=True, timeout=20)
    assert b"Traceback" not in looked.stderr, looked.stderr
    return looked.returncode == 0


def mpush(log: Path, url: str, **more: Any) -> Service:
    return Service("mpush", log, redis=url, in_="in", pending="pending", out=["a", "b"], **more)


async def test_a_registered_service_is_well_and_one_that_lost_its_place_is_not(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    with mpush(tmp_path / "log", redis_url, redis_namespace="demo") as service:
        until(lambda: "registered" in service.said())
        assert well(service)
        os.kill(service.pid, signal.SIGSTOP)  # or it would notice, and end, before it is looked at
        await redis.hset("demo:1", "pid", 1)
        assert not well(service)


async def test_a_service_that_outlived_many_others_is_well(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    """A replica that crashes and starts again all night must not make the check end its healthy neighbour."""
    with mpush(tmp_path / "log", redis_url, redis_namespace="demo") as service:
        until(lambda: "registered" in service.said())
        await redis.set("demo:id", 5000)
        assert well(service)


async def test_registrations_are_looked_for_where_the_settings_say(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    elsewhere = redis_url.replace("/0", "/1")
    with mpush(tmp_path / "log", redis_url, redis_namespace="demo", service_redis=elsewhere) as service:
        until(lambda: "registered" in service.said())
        assert well(service)
        assert service.stop() == 0


async def test_a_service_without_a_namespace_is_well_while_its_server_answers(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    with mpush(tmp_path / "log", redis_url) as service:
        until(lambda: "settings" in service.said())
        assert well(service)


def test_where_no_service_runs_nothing_is_well() -> None:
    code = "import common.health as health; health.services = lambda: iter(()); raise SystemExit(health.main())"
    looked = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=20)
    assert looked.returncode == 1
    assert b"no service runs here" in looked.stderr
