"""Requests under load while the server restarts and importers are killed: each answer is that of its own request."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from common.http.server import listening_socket
from penstock.testing.server import EmbeddedServer
from tests.reliability.importing import OUT, Load, Worker, importer
from tests.support.harness import rounds, until


@pytest.fixture
def port() -> int:
    with closing(listening_socket("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def durable() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(aof=True) as server:
        yield server


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
