"""Consumers of ``penstock.lists`` that are killed, cut off and stopped lose nothing and double nothing."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from redis import Redis

from penstock.composition.files import read
from penstock.testing.chaos.plan import Chosen
from penstock.testing.chaos.report import summary
from penstock.testing.chaos.run import Run
from tests.reliability.lists import worker
from tests.support.harness import ROOT, rounds, until


def test_producers_killed_and_connections_cut_under_script_flush_lose_and_double_nothing(
    redis_url: str, tmp_path: Path
) -> None:
    """What a producer saw confirmed is moved once; what it did not, at most once."""
    rng, confirmed, program = random.Random(), tmp_path / "confirmed", "tests.reliability.list_producer"
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        with worker(redis_url), worker(redis_url):
            for number in rounds():
                before = redis.llen("out")
                with (
                    confirmed.open("ab") as output,
                    subprocess.Popen(
                        [sys.executable, "-m", program, "in", f"p{number}"],
                        cwd=ROOT, env=os.environ | {"REDIS": redis_url}, stdout=output,
                    ) as producer,
                ):  # fmt: skip
                    try:
                        until(lambda before=before: redis.llen("out") > before + 20)  # type: ignore[misc]
                        redis.script_flush("SYNC")
                        redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                        until(lambda: rng.random() < 0.1)
                    finally:
                        producer.kill()
            until(lambda: not redis.llen("in") and not [*redis.scan_iter("in:consumer:*")])
            moved = Counter(redis.lrange("out", 0, -1))
    assert max(moved.values()) == 1
    lines = confirmed.read_bytes().splitlines()
    assert len(lines) > 20
    assert not {*lines} - moved.keys()


async def test_no_fault_at_any_command_of_a_consumer_loses_or_doubles_a_message(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("mover: exec python -m tests.reliability.list_worker in out\n")
    (tmp_path / "composition.yaml").write_text("programs: {mover: {reads: in, writes: [out], keeps: 'in:consumer'}}\n")
    report = await Run(read(tmp_path), Chosen(seed=1, rounds=1, lanes=8), lambda *_: None).report()
    assert [summary(result) for result in report.results if result.broken] == []
    assert len(report.points) > 8
    assert sum(result.met for result in report.results) > len(report.results) * 0.8
