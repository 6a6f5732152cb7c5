"""Programs that sregister registers: found while they are ready, stopped by a deletion, and ended with their status."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from penstock.inspect.discovery import discovered
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock, running
from tests.support.harness import Service, eventually

NS: Final = "orders:api"
SLEEPS: Final = "echo hello; exec sleep 600"


def program(redis_url: str, log: Path, command: str = SLEEPS, **settings: Any) -> Service:
    given = {"redis": redis_url, "redis_namespace": NS, "command": command, "health_interval": 0.1, **settings}
    return Service("sregister", log, **{"health_timeout": 0.1, **given})


async def is_ready(redis: "Redis", *, many: int = 1) -> bool:
    return [each.ready for each in await discovered(redis, NS)] == [True] * many


def lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False


async def child_of(redis: "Redis") -> int:
    [found] = await discovered(redis, NS)
    return int(await redis.hget(f"{NS}:{found.id}", "child") or 0)


async def test_it_is_found_while_it_runs_and_stopped_by_deleting_its_key(
    redis: "Redis", redis_url: str, tmp_path: Path
) -> None:
    address = "http://127.0.0.1:8080"
    with program(redis_url, tmp_path / "log", address=address) as service:
        await eventually(lambda: is_ready(redis))
        [found] = await discovered(redis, NS)
        assert (found.address, found.pid, found.service, found.why) == (address, str(service.pid), "sregister", "")
        shown = await penstock("discover", NS, "--json", redis=redis_url)
        assert (shown.status, [each["address"] for each in shown.json["instances"]]) == (0, [address])
        child = await child_of(redis)
        assert lives(child)
        await redis.delete(f"{NS}:{found.id}")
        assert await asyncio.to_thread(service.wait) == 0
        assert not lives(child)
        assert "hello\n" in service.log_text()
    assert await discovered(redis, NS) == []
    assert (await penstock("discover", NS, redis=redis_url)).status == 1


@pytest.mark.parametrize(("command", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
async def test_its_status_is_that_of_the_command(
    redis: "Redis", redis_url: str, tmp_path: Path, command: str, status: int
) -> None:
    with program(redis_url, tmp_path / "log", command) as service:
        assert await asyncio.to_thread(service.wait) == status
    assert await redis.hgetall(f"{NS}:metrics:ready") == {b"count": b"1", b"ended": b"1"}
    assert not await redis.exists(f"{NS}:1")


async def test_an_unhealthy_program_is_not_ready_until_it_is_well(
    redis: "Redis", redis_url: str, tmp_path: Path
) -> None:
    well = tmp_path / "well"
    with program(redis_url, tmp_path / "log", health=f"test -e {well} || (echo sick; exit 3)", health_timeout=0.1):
        await eventually(lambda: redis.hexists(f"{NS}:1", "unready"))
        [found] = await discovered(redis, NS)
        assert (found.ready, found.why) in [
            (False, "starting"),
            (False, f"test -e {well} || (echo sick; exit 3): status 3: sick"),
        ]
        well.touch()
        await eventually(lambda: is_ready(redis))
        well.unlink()
        await eventually(lambda: redis.hexists(f"{NS}:1", "unready"))
    assert (await redis.hgetall(f"{NS}:metrics:ready")).items() >= {(b"count", b"1"), (b"failed", b"1")}


async def test_what_runs_goes_on_while_the_server_is_away_and_is_registered_anew(tmp_path: Path) -> None:
    """The server comes back without its data."""
    with EmbeddedServer() as server, program(server.url, tmp_path / "log", address="a:1"):
        async with Redis.from_url(server.url) as redis:
            await eventually(lambda: is_ready(redis))
            child = await child_of(redis)
        await asyncio.to_thread(server.restart)
        async with Redis.from_url(server.url) as redis:
            await eventually(lambda: is_ready(redis))
            assert await child_of(redis) == child
            assert [each.address for each in await discovered(redis, NS)] == ["a:1"]


async def test_it_ends_with_its_program_though_the_server_is_away(tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"while ! test -e {go}; do sleep 0.05; done; exit 7"
    with EmbeddedServer() as server, program(server.url, tmp_path / "log", command) as service:
        async with Redis.from_url(server.url) as redis:
            await eventually(lambda: is_ready(redis))
        await asyncio.to_thread(server.kill)
        await eventually(lambda: "waiting" in service.log_text())
        go.touch()
        assert await asyncio.to_thread(service.wait) == 7


async def test_a_killed_sregister_takes_its_program_with_it(redis: "Redis", redis_url: str, tmp_path: Path) -> None:
    with program(redis_url, tmp_path / "log") as service:
        await eventually(lambda: is_ready(redis))
        child = await child_of(redis)
        service.kill()
        await eventually(lambda: not lives(child))


async def test_a_stop_leaves_others_time_to_notice(redis: "Redis", redis_url: str, tmp_path: Path) -> None:
    with program(redis_url, tmp_path / "log", drain=1.0, stop_timeout=30) as service:
        await eventually(lambda: is_ready(redis))
        child = await child_of(redis)
        service.signal(signal.SIGTERM)
        await eventually(lambda: _gone(redis))
        assert lives(child)
        assert await asyncio.to_thread(service.wait) == 0
        assert not lives(child)


async def _gone(redis: "Redis") -> bool:
    return await discovered(redis, NS) == []


async def test_who_watches_goes_on_after_its_server_was_away(tmp_path: Path) -> None:
    file = tmp_path / "up.env"
    with EmbeddedServer() as server:
        words = ("discover", NS, "--watch", "--format", "env", "--output", str(file))
        async with running(*words, redis=server.url) as process:
            await eventually(file.exists)
            await asyncio.to_thread(server.restart)
            async with Redis.from_url(server.url) as redis:
                await redis.hset(f"{NS}:1", mapping={"host": "a", "started": 1, "ready": 1, "address": "a:1"})
                await redis.lpush(f"{NS}:ids", 1)
            await eventually(lambda: file.read_text() == "ORDERS_API_ADDRESSES=a:1\n")
            assert process.returncode is None
