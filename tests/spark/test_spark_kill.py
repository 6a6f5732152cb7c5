"""Queries whose driver, workers and server are killed in mid-run lose nothing and double nothing."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from penstock.spark.options import connect
from penstock.testing.server import EmbeddedServer
from tests.spark import SparkSession, add_events
from tests.spark.queries import CHANGED, NAMES, TABLES, started
from tests.support.harness import ROOT

ROUNDS: Final = int(os.environ.get("PENSTOCK_SPARK_ROUNDS", "1"))
GROUPS: Final = (NAMES, (CHANGED, *TABLES[:2]), TABLES[2:])
"""Queries that run at once, by round: three rounds for all of them."""
UNORDERED: Final = ("entries to hashes", *TABLES)
KILLS: Final = ("worker", "driver", "server")
"""Kills of a round, in any order; then the driver is killed once more."""
TIMEOUT_SECONDS: Final = float(os.environ.get("SPARK_PATIENCE", "300"))
"""Longest wait for progress."""


class Feed:
    """Input of the queries ``names`` and a check of their output."""

    def __init__(self, client: Any, names: Sequence[str]) -> None:
        self._redis = client
        self._names = names
        self.made = 0

    def give(self, many: int) -> None:
        numbers = range(self.made + 1, self.made + many + 1)
        add_events(self._redis, many, start=self.made + 1)
        with self._redis.pipeline(transaction=False) as wire:
            for key in ("in", "jobs"):
                wire.lpush(key, *numbers)
            for number in numbers:
                wire.xadd("numbers", {"n": number})
                wire.hset(f"version:{number}", "n", number)
            wire.execute()
        self.made += many

    def done(self) -> list[int]:
        """Return the number of rows that each query has written."""
        counts: dict[str, Callable[[], Any]] = {
            "events to list": lambda: self._redis.llen("out:events"),
            "list to list": lambda: self._redis.llen("out:list"),
            "entries to hashes": lambda: int(self._redis.hget("seen", "count") or 0),
            "list to stream": lambda: self._redis.xlen("out:stream"),
            CHANGED: lambda: self._redis.llen("out:changed"),
            "entries to strings": lambda: len(self._keys("string:")),
            "entries to set": lambda: self._redis.scard("out:set"),
            "entries to sorted set": lambda: self._redis.zcard("out:zset"),
            "entries to documents": lambda: len(self._keys("document:")),
        }
        return [counts[name]() for name in self._names]

    def _keys(self, prefix: str) -> list[bytes]:
        return sorted(set(self._redis.scan_iter(f"{prefix}*", count=10_000)))

    def wait_for_all(self, log_text: Callable[[], str]) -> None:
        """Wait until each query has written further rows."""
        before, until = self.done(), time.monotonic() + TIMEOUT_SECONDS
        while any(now <= was for now, was in zip(self.done(), before, strict=True)):
            assert time.monotonic() < until, f"{before} {self.done()} {log_text()[-5000:]}"
            time.sleep(0.02)

    def check(self) -> None:
        """Check that every message was written once, and in order if the sink has one."""
        truth = [b"%d" % number for number in range(1, self.made + 1)]
        rows: dict[str, Callable[[], list[bytes]]] = {
            "events to list": lambda: self._redis.lrange("out:events", 0, -1)[::-1],
            "list to list": lambda: self._redis.lrange("out:list", 0, -1)[::-1],
            "entries to hashes": self._seen,
            "list to stream": lambda: [
                words[1] for _, words in self._redis.execute_command("XRANGE", "out:stream", "-", "+")
            ],
            CHANGED: lambda: self._redis.lrange("out:changed", 0, -1)[::-1],
            "entries to strings": lambda: [self._same(key, self._redis.get(key)) for key in self._keys("string:")],
            "entries to set": lambda: [*self._redis.smembers("out:set")],
            "entries to sorted set": lambda: [
                self._same(b":" + member, b"%d" % score)
                for member, score in self._redis.zrange("out:zset", 0, -1, withscores=True)
            ],
            "entries to documents": lambda: [
                self._same(key, b"%d" % json.loads(self._redis.get(key))["n"]) for key in self._keys("document:")
            ],
        }
        for name in self._names:
            found = rows[name]()
            assert Counter(truth) - Counter(found) == Counter(), f"{name}: lost"
            assert Counter(found) - Counter(truth) == Counter(), f"{name}: doubled"
            assert name in UNORDERED or found == truth, f"{name}: in another order"
        assert self.done() == [self.made] * len(self._names)

    def _seen(self) -> list[bytes]:
        keys = self._keys("seen:")
        return [key.removeprefix(b"seen:") for key in keys for _ in range(int(self._redis.hget(key, "count")))]

    def _same(self, key: bytes, value: bytes) -> bytes:
        """Return ``value``, which must be the same as what follows the colon of ``key``."""
        assert key.rpartition(b":")[2] == value
        return value


def finish(spark: "SparkSession", url: str, place: Path, names: Sequence[str]) -> None:
    """Run all queries to the end of their input. Restart one that fails, as an operator would."""
    until = time.monotonic() + TIMEOUT_SECONDS
    for name in names:
        query = started(spark, name, url, place, most=10**6, ends=True)
        while query.isActive or query.exception():
            assert time.monotonic() < until, f"{name}: {query.exception()}"
            if not query.isActive:
                query = started(spark, name, url, place, most=10**6, ends=True)
            time.sleep(0.02)


class Driver:
    """A process of ``queries`` with its Java and its workers, which waits for ``go``."""

    def __init__(self, url: str, place: Path, log: Path, names: Sequence[str]) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.queries", url, str(place), *names],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                start_new_session=True,
            )

    def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill_a_worker(self, chance: random.Random) -> None:
        """Kill workers until a query fails: some are idle and needed by none."""
        failed = self.log_text().count("failed ")
        until = time.monotonic() + TIMEOUT_SECONDS
        while self.log_text().count("failed ") == failed:
            assert time.monotonic() < until, self.log_text()[-5000:]
            workers = [each for each in _family(self._process.pid) if _is_worker(each)]
            if workers:
                _kill(chance.choice(workers))
            time.sleep(chance.uniform(0.2, 1))

    def kill(self) -> None:
        """Kill Python, Java and the workers."""
        if self.is_alive():
            family = _family(self._process.pid)
            self._process.kill()
            for each in family:
                _kill(each)
            while any(map(_lives, family)):
                time.sleep(0.01)
        self._process.communicate()


def _family(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def _lives(process: psutil.Process) -> bool:
    """Return True unless ``process`` has ended or is a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_worker(process: psutil.Process) -> bool:
    """Return True if ``process`` plans, reads or writes batches; its parent is ``pyspark.daemon``."""
    try:
        words, parent = " ".join(process.cmdline()), process.parent()
        of_daemon = parent is not None and "pyspark.daemon" in parent.cmdline()
    except psutil.NoSuchProcess:
        return False
    return (of_daemon and "lookup_data_sources" not in words) or "source_runner" in words


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_queries_that_are_killed_at_random_lose_and_double_nothing(
    spark: "SparkSession", tmp_path: Path, round_: int
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = GROUPS[round_ % len(GROUPS)]
    kills = [*chance.sample(KILLS, len(KILLS)), "driver"]
    with EmbeddedServer(directory=tmp_path, aof=True) as server, connect(server.url) as client, ExitStack() as ends:
        drivers = [Driver(server.url, tmp_path, tmp_path / f"{number}.log", names) for number in range(2)]
        for driver in drivers:
            ends.callback(driver.kill)
        feed = Feed(client, names)
        drivers[0].go()
        for kill in kills:
            feed.give(1_000)
            feed.wait_for_all(drivers[0].log_text)
            time.sleep(chance.uniform(0, 1))
            assert min(feed.done()) < feed.made, "killed in mid-run"
            match kill:
                case "worker":
                    drivers[0].kill_a_worker(chance)
                case "server":
                    server.kill()
                    time.sleep(chance.uniform(0, 1))
                    server.start()
                case "driver":
                    drivers.pop(0).kill()
                    for driver in drivers:
                        driver.go()
        finish(spark, server.url, tmp_path, names)
        feed.check()
