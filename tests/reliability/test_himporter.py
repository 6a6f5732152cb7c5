"""Requests under load while the server restarts and importers are killed: each answer is that of its own request."""

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import redis as sync

from common.http.server import listening_socket
from penstock.testing.server import EmbeddedServer
from tests.support.harness import Service, rounds, until

OUT, CLIENTS = "web:requests", 8
ALLOWED = {200, 503, 504}


class Worker(threading.Thread):
    """Answers every request with its path; takes with a pending list, so that it loses nothing when the server goes.

    The hash ``worked`` counts what it did, by path.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.redis, self.ended = sync.Redis.from_url(url), threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()
        self.redis.close()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                text: Any = self.redis.lindex("worker", -1) or self.redis.blmove(OUT, "worker", 1, "RIGHT", "LEFT")
                if text is None:
                    continue
                request = json.loads(text)
                answer = {"id": request["id"], "status": 200, "headers": [], "body": request["path"]}
                with self.redis.pipeline() as step:
                    step.lpush(request["replyTo"], json.dumps(answer))
                    step.hincrby("worked", request["path"], 1)
                    step.rpop("worker")
                    step.execute()
            except (sync.ConnectionError, sync.TimeoutError, sync.ResponseError):  # away, loading or full
                self.ended.wait(0.01)


class Load:
    """Clients that ask one request after the other, and count what they get, from ``__aenter__`` to ``__aexit__``."""

    def __init__(self, port: int) -> None:
        self.url, self.got, self.wrong = f"http://127.0.0.1:{port}", Counter[int](), list[str]()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(CLIENTS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended = True
        async with asyncio.timeout(60):
            await asyncio.gather(*self._tasks)

    async def _ask(self, number: int) -> None:
        async with httpx.AsyncClient(timeout=30) as client:
            step = 0
            while not self._ended:
                step += 1
                path = f"/{number}/{step}"
                try:
                    answer = await client.get(self.url + path)
                except httpx.TransportError:  # its importer was killed
                    self.got[0] += 1
                    await asyncio.sleep(0.02)
                    continue
                self.got[answer.status_code] += 1
                if answer.status_code not in ALLOWED or (answer.status_code == 200 and answer.text != path):
                    self.wrong.append(f"{path}: {answer.status_code} {answer.text}")
                if answer.status_code != 200:
                    await asyncio.sleep(0.02)

    async def served(self, more: int = 50) -> None:
        """Wait until ``more`` requests were answered with 200. Fail after a minute."""
        wanted = self.got[200] + more
        async with asyncio.timeout(60):
            while self.got[200] < wanted:
                await asyncio.sleep(0.01)


@pytest.fixture
def port() -> int:
    with closing(listening_socket("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def durable() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(aof=True) as server:
        yield server


def importer(url: str, port: int, log: Path, **settings: Any) -> Service:
    given = {"redis": url, "redis_namespace": "web", "out": OUT, "listen_port": port, "timeout": 10, **settings}
    return Service("himporter", log, **given)


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    except httpx.HTTPError:
        return False


async def test_a_server_that_restarts_under_load_costs_no_answer_and_mixes_up_none(
    durable: EmbeddedServer, port: int, tmp_path: Path
) -> None:
    """GET is idempotent: what may not have arrived is asked again, so only 503 while the server is away is allowed."""
    with importer(durable.url, port, tmp_path / "log") as service, Worker(durable.url):
        await asyncio.to_thread(until, lambda: is_ready(port))
        async with Load(port) as load:
            for _ in rounds():
                await load.served()
                await asyncio.to_thread(random.choice([durable.kill, durable.stop]))
                await asyncio.to_thread(durable.start)
            await load.served()
        assert load.wrong == []
        assert load.got[504] == load.got[0] == 0
        assert service.runs()
        assert await asyncio.to_thread(service.stop) == 0


async def test_importers_killed_under_load_mix_up_no_answers(
    durable: EmbeddedServer, port: int, tmp_path: Path
) -> None:
    services = [importer(durable.url, port, tmp_path / str(number), share_port=True) for number in range(2)]
    with services[0], services[1], Worker(durable.url) as worker:
        await asyncio.to_thread(until, lambda: is_ready(port))
        async with Load(port) as load:
            for _ in rounds():
                await load.served()
                victim = random.choice(services)
                await asyncio.to_thread(victim.kill)
                victim.start()
            await load.served()
        assert load.wrong == []
        assert load.got[503] == load.got[504] == 0
        for service in services:
            assert await asyncio.to_thread(service.stop) == 0
        await asyncio.to_thread(until, lambda: not worker.redis.llen(OUT))


async def test_a_server_away_or_full_is_503_at_once_and_service_resumes_soon(
    durable: EmbeddedServer, port: int, tmp_path: Path
) -> None:
    with importer(durable.url, port, tmp_path / "log"), Worker(durable.url) as worker:
        await asyncio.to_thread(until, lambda: is_ready(port))
        async with Load(port) as load:
            for trouble in ("away", "full"):
                await load.served()
                if trouble == "away":
                    await asyncio.to_thread(durable.kill)
                else:
                    worker.redis.config_set("maxmemory", 1)
                refused = load.got[503]
                async with asyncio.timeout(60):
                    while load.got[503] < refused + 200:
                        await asyncio.sleep(0.05)
                if trouble == "away":
                    await asyncio.to_thread(durable.start)
                else:
                    worker.redis.config_set("maxmemory", 0)
                await load.served()
        assert load.wrong == []
        assert load.got[0] == 0
        assert load.got[504] <= CLIENTS  # those whose worker could not push its answer to a full server
