"""Workers and producers are killed under load, and the server with them: every job ends once in every group."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from redis.asyncio import Redis

from penstock.jobs import Jobs
from penstock.testing.server import EmbeddedServer
from penstock.testing.watchdog import Watchdog
from tests.jobs.given import dead, kept
from tests.jobs.killed import CLAIM_AFTER, GROUPS, outcome
from tests.support.harness import ROOT, eventually, rounds

pytestmark = pytest.mark.slow
WORKERS = 3


class Program:
    """A process of tests/jobs/killed.py; what it prints is in ``log``."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.jobs.killed", *words], cwd=ROOT, stdout=output, stderr=output
            )
        self._watchdog = Watchdog(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def lines(self, verb: str) -> list[list[str]]:
        """Return the words of all whole lines that begin with ``verb``."""
        text = self.log.read_text(errors="replace")
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith(f"{verb} ")]

    def says(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._watchdog.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Load:
    """Workers and a producer, which are started anew when they have ended."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url, self._directory, self._started = url, directory, 0
        self.sending, self.sent = set[int](), set[int]()
        self.workers = [self._start("worker") for _ in range(WORKERS)]
        self.producer = self._start("producer", "0")

    def _start(self, *words: str) -> Program:
        self._started += 1
        return Program(self._directory / f"{self._started}-{words[0]}.log", words[0], self._url, *words[1:])

    def note_sent(self) -> None:
        self.sending |= {int(number) for _, number in self.producer.lines("sending")}
        self.sent |= {int(number) for _, number in self.producer.lines("sent")}

    def kill_producer(self) -> None:
        self.producer.kill()
        self.note_sent()
        self.producer = self._start("producer", str(max(self.sending, default=-1) + 1))

    def replace(self, place: int) -> None:
        self.workers[place].kill()
        self.workers[place] = self._start("worker")

    def keep_up(self) -> bool:
        """Start workers anew that a job has killed, and a producer that is not sure of its last job; return True."""
        if self.producer.has_ended:
            self.kill_producer()
        return self.keep_workers()

    def works(self, place: int) -> bool:
        """Return whether a worker has begun a job; start anew what has ended."""
        return self.keep_up() and bool(self.workers[place].lines("begun"))

    def keep_workers(self) -> bool:
        """Start workers anew that a job has killed; return True."""
        for place, worker in enumerate(self.workers):
            if worker.has_ended:
                self.replace(place)
        return True

    def end(self) -> None:
        for each in (*self.workers, self.producer):
            each.kill()


async def is_through(redis: Any) -> bool:
    groups = await redis.xinfo_groups("hfxbus:str:s")
    [(last, _)] = await redis.xrevrange("hfxbus:str:s", count=1)
    return len(groups) == len(GROUPS) and all(
        each["pending"] == 0 and each["last-delivered-id"] == last for each in groups
    )


async def test_every_job_ends_once_in_every_group_whoever_is_killed(tmp_path: Path) -> None:
    moments = random.Random()
    with EmbeddedServer(aof=True) as server:
        load = Load(server.url, tmp_path)
        try:
            for number in rounds():
                victim = moments.randrange(WORKERS)
                await eventually(partial(load.works, victim), 60)
                await asyncio.sleep(moments.uniform(0, 0.1))
                if number % 7 == 3:
                    server.kill()
                    await asyncio.sleep(moments.uniform(0, 0.2))
                    server.start()
                if number % 4 == 1:
                    await eventually(lambda: load.keep_up() and load.producer.lines("sent"), 60)
                    load.kill_producer()
                load.replace(victim)
            await eventually(lambda: load.keep_up() and load.producer.lines("sent"), 60)
            load.producer.kill()
            load.note_sent()
            async with Redis.from_url(server.url) as redis:
                await eventually(lambda: load.keep_workers() and is_through(redis), 40)
                await each_has_ended_once(redis, load)
            async with Jobs(server.url) as jobs:
                for each in moments.sample(sorted(load.sent), 5):
                    found = await jobs.producer("P").finished("s", f"J{each}", GROUPS, 10, since=0)
                    for group in GROUPS:
                        assert (found[group].error is None) == (outcome(group, each) == "done")
        finally:
            load.end()


async def each_has_ended_once(redis: Any, load: Load) -> None:
    """Check the completions, the results and the dead jobs by their contents."""
    ends = Counter((each["grp"], int(each["job"][1:])) for each in await kept(redis))
    numbers = {number for _, number in ends}
    assert load.sent <= numbers <= load.sending
    assert ends == Counter((group, number) for group in GROUPS for number in numbers)
    letters = {int(each["job"][1:]): each for each in await dead(redis)}
    assert sorted(letters) == sorted(number for number in numbers if outcome("g", number) != "done")
    for each in await kept(redis):
        group, number = each["grp"], int(each["job"][1:])
        assert ("err" in each) == (outcome(group, number) != "done")
        expected = None if "err" in each else str(number * number).encode()
        assert await redis.get(f"hfxbus:job:J{number}:out-{group}") == expected
    for number, letter in letters.items():
        assert letter["values"]["n"] == str(number)
        names = [each["error"]["name"] for each in letter["errors"]]
        assert [each["attempt"] for each in letter["errors"]] == [*range(1, int(letter["attempts"]) + 1)]
        assert names[-1] == "Final"
        assert set(names[:-1]) <= {"Lost"}
        if outcome("g", number) == "poison":
            assert len(names) > 3
    async with redis.pipeline() as step:
        for key in await redis.keys("hfxbus:job:*"):
            step.pttl(key)
        assert min(await step.execute()) > 0
    assert not await redis.exists("hfxbus:wait:s:g", "hfxbus:wait:s:h", "hfxbus:tries:s:g", "hfxbus:tries:s:h")


async def test_a_late_result_of_a_worker_that_was_suspended_is_not_applied(tmp_path: Path) -> None:
    with EmbeddedServer() as server:
        async with Jobs(server.url) as jobs, Redis.from_url(server.url) as redis:
            sent = await jobs.producer().send("s", wait_for=["g"])
            with Program(tmp_path / "one", "slow", server.url) as one:
                await eventually(lambda: one.lines("begun"))
                one.signal(signal.SIGSTOP)
                await asyncio.sleep(CLAIM_AFTER)
                with Program(tmp_path / "other", "slow", server.url) as other:
                    await eventually(lambda: other.lines("ended"))
                    assert set(await sent.finished(10)) == {"g"}
                    one.signal(signal.SIGCONT)
                    await eventually(lambda: one.says("not settled") or one.says("another consumer has the job"))
                    assert await sent.job.get("out").pull() == [other.pid]
            assert one.pid != other.pid != os.getpid()
            assert [each["grp"] for each in await kept(redis)] == ["g"]
            assert (await redis.xpending("hfxbus:str:s", "hfxbus:csr:g"))["pending"] == 0
