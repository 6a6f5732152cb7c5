"""Workers and producers of jobs as processes, which tests kill, and checks of what they have done."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

from penstock.core.orphaned import Watchdog
from tests.jobs.given import dead, kept
from tests.jobs.killed import GROUPS, outcome
from tests.support.harness import ROOT

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
