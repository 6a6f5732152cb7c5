"""A processor that blocks the event loop keeps its jobs, as long as its deadline."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest
from redis import Redis

from penstock.jobs import Attempt, Jobs, Limit
from tests.jobs.given import consumer, renew_every, working
from tests.support.harness import PATIENCE, eventually

GROUP = "hfxbus:csr:g"


def idle(client: "Redis", entry: bytes) -> int:
    """Return for how long (ms) nobody has renewed a job."""
    [found] = client.xpending_range("hfxbus:str:s", GROUP, entry, entry, 1)
    assert found["times_delivered"] == 1
    return int(found["time_since_delivered"])


def block(client: "Redis", entry: bytes, renewals: int, milliseconds: float = float("inf")) -> int:
    """Block until a job was renewed so often, or not for so long; return how often it was."""
    seen, last = 0, idle(client, entry)
    until = time.monotonic() + PATIENCE
    while seen < renewals and last < milliseconds:
        assert time.monotonic() < until
        time.sleep(0.01)
        now = idle(client, entry)
        seen += now < last
        last = now
    return seen


async def test_what_blocks_the_event_loop_keeps_its_jobs_and_is_named(
    jobs: Jobs, redis: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("structlog.is_configured", lambda: False)  # as a test of a command may leave it
    renew_every(monkeypatch, 0.1)
    many, found = 3, list[int]()
    worker = consumer(concurrency=many)

    with Redis.from_url(redis_url) as client:

        @worker.job("s")
        async def work(job: Attempt) -> None:
            await asyncio.sleep(0.2)  # timing: if the machine has stalled, the event loop shows a sign of life first
            if job.id == "J0":
                [last] = client.xrevrange("hfxbus:str:s", count=1)
                found.append(block(client, last[0], 2))

        for number in range(many):
            await redis.xadd("hfxbus:str:s", {"prd": "p", "job": f"J{number}"})
        async with working(jobs, worker):
            await eventually(partial(_is_done, redis, many))
            await eventually(lambda: "goes on after it was blocked" in caplog.text)
    assert found == [2]
    blames = "stream='s' group='g' job='J0'"
    assert f"a handler blocks the event loop {blames} seconds=" in caplog.text
    assert f"the event loop goes on after it was blocked {blames} seconds=" in caplog.text


async def _is_done(redis: Any, many: int) -> bool:
    return bool(await redis.xlen("hfxbus:done:s") == many)


async def test_after_its_deadline_a_job_is_not_renewed_any_more(
    jobs: Jobs, redis: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_every(monkeypatch, 0.05)
    worker, found = consumer(), list[int]()

    with Redis.from_url(redis_url) as client:

        @worker.job("s", deadline=0.1)
        async def work(job: Attempt) -> None:
            if job.number == 1:  # as it is too late, there is another attempt
                found.append(block(client, job.entry, 1, 1_500))

        await jobs.producer().send("s")
        async with working(jobs, worker):
            await eventually(partial(_is_done, redis, 1))
    assert found == [0]


async def test_a_permit_is_kept_as_well(
    jobs: Jobs, redis: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_every(monkeypatch, 0.1)
    worker, found = consumer(), list[bool]()

    with Redis.from_url(redis_url) as client:

        @worker.job("s", limit=Limit(concurrency=1))
        async def work(job: Attempt) -> None:
            [(_, before)] = client.zrange("hfxbus:busy:s:g", 0, -1, withscores=True)
            block(client, job.entry, 2)
            [(_, after)] = client.zrange("hfxbus:busy:s:g", 0, -1, withscores=True)
            found.append(after > before)

        await jobs.producer().send("s")
        async with working(jobs, worker):
            await eventually(partial(_is_done, redis, 1))
    assert found == [True]
