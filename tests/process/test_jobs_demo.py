"""The jobs composition, run as by a user, also with a worker that lies and a job that is gone: that is reported."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from compose.jobs.snow import HFXBUS
from tests.support.demos import ROOT, demonstrate

DEMO = """
import sys
from pathlib import Path
from compose.jobs import demo
patience = float(sys.argv.pop())
demo.main(Path(sys.argv.pop()), months=24, patience=patience)
"""
"""Program that runs the demo with the last 24 months: the directory, and the producer's patience (s)."""
LIAR = """
import asyncio, os, signal
from penstock.jobs import Consumer, Jobs
consumer = Consumer("statistics", id="liar")
@consumer.job("months", result="statistics")
async def lie(job):
    consumer.stop()
    return {"days": 31, "mean": 1.0, "max": 2.0, "rainy": 3, "worker": "liar"}
async def main():
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    async with Jobs(os.environ["REDIS"], prefix="figures:jobs") as jobs:
        await jobs.run(consumer)
        await end.wait()
asyncio.run(main())
"""
"""Consumer that does one job, or two, and returns what is not so."""
THIEF = '''
import os, redis, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
server = redis.Redis.from_url(os.environ["REDIS"])
keys = [f"figures:jobs:{name}" for name in ("parked:months:statistics", "wait:months:statistics", "str:months")]
script = """
local member = redis.call('ZRANGE', KEYS[1], -1, -1)[1]
if not member then return end
local ms, seq = string.match(member, '(%d+)-(%d+)$')
local entry = ms .. '-' .. tonumber(seq)
redis.call('ZREM', KEYS[1], member)
redis.call('ZREM', KEYS[2], entry)
redis.call('XACK', KEYS[3], 'figures:jobs:csr:statistics', entry)
redis.call('XDEL', KEYS[3], entry)
return entry
"""
while not server.eval(script, 3, *keys):
    time.sleep(0.01)
signal.pause()
'''
"""Program that removes a job that waits for its year."""


def run(directory: Path, status: int, patience: int = 60) -> Any:
    done = demonstrate(None, "-c", DEMO, "--json", str(directory), str(patience))
    assert done.returncode == status, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_every_job_ends_once_for_each_group_while_a_process_is_killed() -> None:
    """Node's hfxbus does the jobs of one group, if it can be installed."""
    found = run(ROOT / "compose/jobs", 0)
    assert found["differences"] == []
    assert found["snow"] == ("Python" if HFXBUS.install() else "Node's hfxbus")
    assert found["done"] == {"statistics": 24, "snow": 25}
    assert sum(found["byWorker"]["statistics"].values()) == 24
    assert found["months"]["2014-08"]["statistics"]["max"] == 35.6
    assert found["dead"] == [{"job": "1812-01", "group": "statistics", "attempts": 3}]
    assert 2 <= len(found["retried"]) <= 8
    assert f"months {found['killed']['job']}" in found["claimed"]
    assert len(found["tallies"]) >= 3
    assert {name for name, status in found["exitStatus"].items() if status} == {"slow"}


def test_the_demo_reports_a_wrong_result_and_a_job_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIGURES_SNOW", "python")
    shutil.copytree(ROOT / "compose/jobs", tmp_path / "copy")
    with (tmp_path / "copy/Procfile").open("a") as procfile:
        for name, program in (("liar", LIAR), ("thief", THIEF)):
            (tmp_path / f"{name}.py").write_text(program)
            procfile.write(f"{name}: exec python {tmp_path / name}.py\n")
    found = run(tmp_path / "copy", 1, patience=5)
    assert found["snow"] == "Python"
    differences = found["differences"]
    [lie] = [line for line in differences if "'worker': 'liar'" in line]
    assert "statistics says" in lie
    [lost] = [line for line in differences if line.endswith("statistics has completed it 0 times")]
    month = lost.partition(":")[0]
    assert f"{month}: statistics says {{'error': 'not completed'}}" in differences
    not_ended = f"months {month}: has ended 0 times in the history of figures:worker"
    assert not_ended in differences
