"""An importer cut off and killed at every command that it sends: what was accepted is answered, and done once."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import httpx
from redis.asyncio import Redis

from penstock.base.ports import free_port
from penstock.core.connection import cancellable
from penstock.testing.chaos.injection import Kind
from penstock.testing.chaos.proxy import FaultProxy
from penstock.testing.server import EmbeddedServer
from tests.reliability.importing import Trial, Worker
from tests.support.commandline import penstock
from tests.support.harness import sampled
from tests.support.importers import importer

TIMEOUT: Final = 2
"""Seconds until the importer answers 504: requests that are not pushed again wait for it."""
FAULTS: Final = 16
"""Faults of a usual run, of some 100."""


async def test_an_importer_that_breaks_at_any_command_leaves_no_accepted_request_without_an_answer(
    tmp_path: Path,
) -> None:
    with EmbeddedServer() as server, Worker(server.url):
        async with cancellable(Redis.from_url(server.url)) as redis, FaultProxy(server.port) as proxy:
            port, url = free_port(), f"redis://{proxy.address}/0"
            service = importer(
                url, port, tmp_path / "log", timeout=TIMEOUT, prefer=True, service_renew=5, service_expire=30
            )
            with service:
                trial = Trial(service, port)
                await trial.ready()
                starting = set(proxy.seen)
                proxy.seen.clear()
                for _ in range(12):
                    await trial.ask_all()
                    await asyncio.sleep(0.5)
                points = [(shape, True) for shape in starting - set(proxy.seen)] + [
                    (each, False) for each in {*proxy.seen}
                ]
                assert len(points) > 15
                met = Counter[bool]()
                for (shape, starts), kind in drawn([(point, kind) for point in points for kind in Kind]):
                    found = await trial.inject(proxy, shape, kind, starts=starts)
                    assert trial.wrong == [], (shape, kind)
                    met[found] += 1
                least = 0 if sampled(FAULTS) else met.total() / 3  # what is not met comes rarely: once a renewal
                assert met[True] > least, met
                await judge(redis, trial, port)
                assert await asyncio.to_thread(service.stop) == 0
        audit = await penstock("audit", "web", redis=server.url)
        assert audit.status == 0, audit.text


def drawn(faults: list[Any]) -> Iterable[Any]:
    """Return all faults in a long run, else some."""
    many = sampled(FAULTS)
    return faults if many is None else random.sample(faults, min(many, len(faults)))


async def judge(redis: "Redis", trial: Trial, port: int) -> None:
    """Every accepted request has its answer; every POST that was answered was done once, and none twice."""
    worked: Any = await redis.hgetall("worked")
    many = {path.decode(): int(times) for path, times in worked.items()}
    assert {path: many.get(path) for path in trial.posted} == dict.fromkeys(trial.posted, 1)
    assert {path: times for path, times in many.items() if path.startswith("/POST") and times > 1} == {}
    assert trial.posted
    assert trial.accepted
    async with httpx.AsyncClient() as client:
        for path, status in trial.accepted.items():
            found = await client.get(f"http://127.0.0.1:{port}{status}/answer")
            assert (found.status_code, found.text) == (200, path)
