"""Discovery: who is ready, who hears of changes, and what is written for other programs."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from penstock.cli.discover import Format, _written
from penstock.inspect.discovery import Found, watch
from services.sregister.health import Health
from services.sregister.settings import Settings
from tests.support.commandline import penstock
from tests.support.harness import PATIENCE

NS: Final = "orders:api"


async def test_who_watches_hears_of_each_change(redis: "Redis") -> None:
    async def next_one(found: AsyncIterator[list[Found]]) -> list[tuple[str, bool]]:
        async with asyncio.timeout(PATIENCE):
            return [(each.id, each.ready) for each in await anext(found)]

    async with aclosing(watch(redis, redis, NS)) as found:  # type: ignore[type-var]  # a generator
        assert await next_one(found) == []
        await redis.hset(f"{NS}:1", mapping={"host": "a", "started": 1, "ready": "0", "unready": "sick"})
        await redis.lpush(f"{NS}:ids", 1)
        assert await next_one(found) == [("1", False)]
        await redis.hset(f"{NS}:1", "ready", 1)
        await redis.publish(f"{NS}:ready", 1)
        assert await next_one(found) == [("1", True)]
        await redis.delete(f"{NS}:1")
        assert await next_one(found) == []


def found(id: str, address: str | None) -> Found:
    return Found(id, "host", "1", "sregister", "1", address, True, "", 0.0)


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (Format.NGINX, "upstream orders_api {\n    server 10.0.0.1:80;\n    server [::1]:81;\n}\n"),
        (
            Format.HAPROXY,
            "backend orders_api\n    server orders_api-1 10.0.0.1:80 check\n    server orders_api-2 [::1]:81 check\n",
        ),
        (Format.ENV, "ORDERS_API_ADDRESSES=http://10.0.0.1:80/x,[::1]:81\n"),
    ],
)
def test_addresses_are_written_for_other_programs(format: Format, expected: str) -> None:
    evil = [
        found("4", "a:1; } server { listen 80"),
        found("5", "a:1\nX=1"),
        found("6; }", "a:1"),
        found("7", "a:1,b:2"),
    ]
    ready = [found("1", "http://10.0.0.1:80/x"), found("2", "[::1]:81"), found("3", None), *evil]
    assert _written(NS, ready, format) == expected


def test_nobody_is_what_nginx_takes_as_well() -> None:
    assert _written(NS, [], Format.NGINX) == "upstream orders_api {\n    server 127.0.0.1:9 down;\n}\n"


async def test_a_file_is_written_and_a_command_run_only_when_it_changes(
    redis: "Redis", redis_url: str, tmp_path: Path
) -> None:
    await redis.hset(f"{NS}:1", mapping={"host": "a", "started": 1, "ready": 1, "address": "a:1"})
    await redis.lpush(f"{NS}:ids", 1)
    file, ran = tmp_path / "up.conf", tmp_path / "ran"
    words = ("discover", NS, "--format", "env", "--output", str(file), "--run", f"echo x >> {ran}")
    for _ in range(2):
        assert (await penstock(*words, redis=redis_url)).status == 0
    assert file.read_text() == "ORDERS_API_ADDRESSES=a:1\n"
    assert ran.read_text() == "x\n"


async def test_a_check_counts_failures_in_a_row(tmp_path: Path) -> None:
    well = tmp_path / "well"
    given: dict[str, Any] = {"redis": "redis://localhost", "redis_namespace": NS, "command": "true"}
    given["health"] = f"test -e {well}"
    health = Health(Settings(**given, health_failures=2), os.environ)
    assert health.problem == "starting"
    await health.check()
    assert health.problem.endswith("status 1")
    well.touch()
    await health.check()
    assert health.problem == ""
    well.unlink()
    await health.check()
    assert health.problem == "", "one failure is not enough"
    await health.check()
    assert health.problem.endswith("status 1")
