"""What tests of jobs share: consumers that run for a while, what they are sent and have in hand, entries of streams."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from penstock.base.encoding import decoded
from penstock.core.backoff import Backoff
from penstock.jobs import Attempt, Consumer, Jobs, scheduler, source
from tests.support.harness import PATIENCE

AT_ONCE: Final = Backoff((0.01,), 0, 0)
CLAIM_AFTER: Final = 60.0
"""Seconds after which a job may be claimed by default: longer than a slow machine stalls."""


def consumer(group: str = "g", **options: Any) -> Consumer:
    """Return a consumer that tries again at once."""
    return Consumer(group, **({"backoff": AT_ONCE} | options))


@asynccontextmanager
async def working(jobs: Jobs, *consumers: Consumer) -> AsyncIterator[None]:
    """Run ``consumers`` until the end of the block."""
    tasks = [asyncio.create_task(jobs.run(each)) for each in consumers]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        for each in consumers:
            each.stop()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks)


def look_every(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let consumers look every ``seconds`` for what was left and what is due, however long ``claim_after`` is."""
    monkeypatch.setattr(scheduler, "LOOK_SHARE", CLAIM_AFTER / seconds)
    monkeypatch.setattr(scheduler, "MAX_SECONDS", seconds)


def renew_every(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let consumers renew every ``seconds`` what they have in hand, while the event loop is blocked, too."""
    monkeypatch.setattr(source, "RENEW_SHARE", CLAIM_AFTER / seconds)


class Gauge:
    """How many processors run, and have run at most, at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


class Held:
    """A processor that notes its jobs, and holds each until ``let`` is called."""

    def __init__(self) -> None:
        self.begun = list[tuple[str, int]]()
        """Id and attempt of each."""
        self.ended = list[str]()
        self._may = asyncio.Event()

    async def __call__(self, job: Attempt) -> None:
        self.begun.append((job.id, job.number))
        await self._may.wait()
        self.ended.append(job.id)

    def let(self) -> None:
        """Let all go on."""
        self._may.set()


async def pending(redis: Any, stream: str = "s", group: str = "g") -> list[tuple[str, int]]:
    """Return entry and number of deliveries of what a group has in hand."""
    found = await redis.xpending_range(f"hfxbus:str:{stream}", f"hfxbus:csr:{group}", "-", "+", 1_000)
    return [(each["message_id"].decode(), each["times_delivered"]) for each in found]


async def dead(redis: Any, stream: str = "s") -> list[dict[str, Any]]:
    """Return the dead jobs of a stream, with errors and values as JSON."""
    found = await redis.xrange(f"hfxbus:dead:{stream}")
    named = [{name.decode(): decoded(value) for name, value in fields.items()} for _, fields in found]
    return [each | {name: json.loads(each[name]) for name in ("errors", "values")} for each in named]


async def kept(redis: Any, stream: str = "s") -> list[dict[str, Any]]:
    """Return the completions that are kept."""
    return [json.loads(fields[b"msg"]) for _, fields in await redis.xrange(f"hfxbus:done:{stream}")]


async def calls(redis: Any) -> int:
    """Return how many commands and scripts consumers have sent."""
    found = await redis.info("commandstats")
    names = ("evalsha", "eval", "xreadgroup", "xrange", "ping")
    return sum(int(found.get(f"cmdstat_{each}", {}).get("calls", 0)) for each in names)


async def send(jobs: Jobs, many: int, stream: str = "s") -> list[str]:
    """Send jobs; return their ids."""
    producer = jobs.producer()
    sent = await asyncio.gather(*(producer.send(stream, jobs.job(f"J{number}")) for number in range(many)))
    return [each.job.id for each in sent]


async def completed(redis: Any, many: int, stream: str = "s") -> bool:
    return bool(await redis.xlen(f"hfxbus:done:{stream}") >= many)
