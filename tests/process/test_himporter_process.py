"""himporter as processes: registration, reload, stop, kills, and the rights that it needs."""

import asyncio
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from penstock.base.ports import free_port
from services.himporter.settings import Settings
from tests.support.commandline import penstock
from tests.support.harness import until
from tests.support.importers import BODY, NAMESPACE, OUT, Worker, importer, is_ready


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def worker(redis_url: str) -> Iterator[Worker]:
    with Worker(redis_url) as worker:
        yield worker


async def test_it_registers_reloads_and_stops(
    redis: "Redis", redis_url: str, port: int, tmp_path: Path, worker: Worker
) -> None:
    with importer(redis_url, port, tmp_path / "log") as service:
        await asyncio.to_thread(until, lambda: is_ready(port))
        assert await redis.hget("web:1", "service") == b"himporter"
        async with httpx.AsyncClient() as client:
            assert (await client.post(f"http://127.0.0.1:{port}/a", content=BODY)).content == BODY
        service.signal(signal.SIGHUP)
        async with asyncio.timeout(60):
            while not await redis.hget("web:metrics:reload", "count"):
                await asyncio.sleep(0.05)
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/b")).headers["x-path"] == "/b"
        assert service.stop() == 0
    audit = await penstock("audit", "web", redis=redis_url)
    assert (audit.status, audit.text.splitlines()[-1]) == (0, "conserved: 2 messages settled, 0 pending")
    assert not await redis.exists("web:1")
    assert int(await redis.hget("web:metrics:http", "2xx") or 0) >= 2


async def test_a_stop_of_one_of_two_importers_under_load_fails_no_request(
    redis: "Redis", redis_url: str, port: int, tmp_path: Path, worker: Worker
) -> None:
    """Each client has a connection for each request, as behind a proxy that asks another importer after a refusal."""
    failed, answered = list[str](), 0
    one, two = (importer(redis_url, port, tmp_path / name, share_port=True) for name in ("one", "two"))
    with one, two:
        await asyncio.to_thread(until, lambda: is_ready(port))
        async with asyncio.timeout(60):
            while await redis.llen("web:ids") < 2:
                await asyncio.sleep(0.05)
        stopping: asyncio.Task[int] | None = None
        async with httpx.AsyncClient() as client:
            for number in range(400):
                if number == 100:
                    stopping = asyncio.create_task(asyncio.to_thread(one.stop))
                try:
                    answer = await client.get(f"http://127.0.0.1:{port}/{number}", headers={"connection": "close"})
                except httpx.ConnectError:  # nobody had accepted the connection yet
                    answer = await client.get(f"http://127.0.0.1:{port}/{number}", headers={"connection": "close"})
                if answer.headers.get("x-path") == f"/{number}":
                    answered += 1
                else:
                    failed.append(f"{number}: {answer.status_code} {answer.text}")
            assert stopping
            assert await stopping == 0
    assert (answered, failed) == (400, [])


async def test_it_works_with_the_rights_that_it_names_and_no_others(
    redis: "Redis", redis_url: str, port: int, tmp_path: Path
) -> None:
    url = redis_url.replace("redis://", "redis://web:pw@")
    more: dict[str, Any] = {"cache": ["/kept/* 60"], "prefer": True}
    settings = Settings(redis=url, redis_namespace=NAMESPACE, out=OUT, listen_port=port, **more)
    (rights,) = settings.rights().values()
    await redis.execute_command(*shlex.split(rights.line("web", "pw")))
    await redis.execute_command("ACL", "LOG", "RESET")
    try:
        with importer(url, port, tmp_path / "log", **more) as service:
            await asyncio.to_thread(until, lambda: is_ready(port))
            async with httpx.AsyncClient(timeout=0.3) as client:
                with pytest.raises(httpx.ReadTimeout):
                    await client.get(f"http://127.0.0.1:{port}/gone")
            async with asyncio.timeout(60):
                while not await redis.keys("web:cancelled:*"):
                    await asyncio.sleep(0.05)
            with Worker(redis_url):
                answer = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{port}/a")
                assert answer.status_code == 200
                await the_cache_works(redis, port)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                accepted = await client.get("/long", headers={"prefer": "respond-async"})
                assert (await client.delete(accepted.headers["location"])).json()["state"] == "cancelled"
            service.stop()
        log: Any = await redis.execute_command("ACL", "LOG")
        assert [each for each in log if b"setinfo" not in each[b"object"]] == []
    finally:
        await redis.execute_command("ACL", "DELUSER", "web")


async def the_cache_works(redis: "Redis", port: int) -> None:
    """Have a page kept, answered and cleared."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert "age" not in (await client.get("/kept/1")).headers
        async with asyncio.timeout(60):
            while not await redis.zcard("web:pages"):
                await asyncio.sleep(0.05)
        assert "age" in (await client.get("/kept/1")).headers
        assert (await client.post("/kept/1")).status_code == 200
        async with asyncio.timeout(60):
            while await redis.keys("web:page:*"):
                await asyncio.sleep(0.05)
        assert "age" not in (await client.get("/kept/1")).headers
