"""worker as a process with the jobs of a shop."""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from redis.asyncio import Redis

from penstock.base.encoding import counted, decoded
from penstock.base.keys import Keys
from penstock.jobs import Completion, Jobs, Sent
from tests.support.commandline import penstock
from tests.support.harness import Service

KEYS: Final = Keys("shop")
GROUP: Final = "clerks"
STREAM: Final = "orders"
APP: Final = """
import asyncio
import os
from pathlib import Path

from penstock.jobs import Attempt, Consumer, Limit
from penstock.core.backoff import Backoff

consumer = Consumer("clerks", concurrency=4, attempts=2, backoff=Backoff((0.05,), 0, 0), claim_after=1.0)


@consumer.job("orders", values=["in"], result="out")
async def work(job: Attempt) -> str:
    verb = (job.values["in"] or b"").decode()
    if verb == "fail":
        raise ValueError("no")
    if verb == "wait":
        await job.progress(os.getpid())
        while not Path("go").exists():
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.01)
    return f"VERSION {job.number} {os.getpid()}"
"""


class Worker(Service):
    """worker with the settings of a shop, started in a folder where ``shop.py`` is."""

    def __init__(self, folder: Path, redis: str, **settings: object) -> None:
        given: dict[str, object] = {"redis_namespace": KEYS.namespace, "app": "shop:consumer"}
        super().__init__("worker", folder / "log", redis=redis, **(given | settings))
        self.folder = folder

    @property
    def children(self) -> list[int]:
        """Its processes that have not ended."""
        return [each.pid for each in psutil.Process(self.pid).children() if not is_gone(each.pid)]


class Shop:
    """Sends jobs, and counts how often each is completed."""

    def __init__(self, jobs: Jobs, heard: "asyncio.Queue[Completion]") -> None:
        self._producer, self._heard = jobs.producer(), heard
        self.sent: list[Sent] = []
        self.completed = Counter[str]()

    async def send(self, many: int = 1, verb: str = "") -> list[Sent]:
        sent = [await self._producer.send(STREAM, {"in": verb.encode()}, wait_for=[GROUP]) for _ in range(many)]
        self.sent += sent
        return sent

    async def results(self, sent: list[Sent]) -> list[tuple[str, int, int]]:
        """Wait for the results of jobs: version of the code, number of the attempt and process."""
        texts: list[str] = [await each.result(GROUP, "out", timeout=60) for each in sent]
        return [(version, int(attempt), int(pid)) for version, attempt, pid in map(str.split, texts)]

    def has_ended_once(self) -> bool:
        while not self._heard.empty():
            self.completed[self._heard.get_nowait().job] += 1
        return self.completed == Counter(each.job.id for each in self.sent)


def write_app(folder: Path, version: str) -> None:
    (folder / "shop.py").write_text(APP.replace("VERSION", version))


async def pids(redis: "Redis") -> set[int]:
    """Return the processes that are registered."""
    ids = await redis.lrange(KEYS.ids, 0, -1)
    return {int(await redis.hget(KEYS.instance(decoded(id)), "pid") or 0) for id in ids}


async def are_up(redis: "Redis", many: int, but: set[int] = frozenset()) -> bool:  # type: ignore[assignment]
    return len(await pids(redis) - but) == many


def is_gone(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


async def audited(redis_url: str, settled: int) -> None:
    audit = await penstock("audit", KEYS.namespace, redis=redis_url)
    last = audit.text.splitlines()[-1]
    assert (audit.status, last) == (0, f"conserved: {counted(settled, 'message')} settled, 0 pending")
