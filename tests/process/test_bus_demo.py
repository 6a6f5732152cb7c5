"""The bus composition, run as by a user, also with a consumer that loses a reading: the demo must report it."""

import json
import shutil
from pathlib import Path

import pytest

from compose.bus import producer
from tests.support.demos import ROOT, demonstrate

DEMO = ("-m", "compose.bus.demo", "--json")
SAMPLE = """
import sys
from pathlib import Path
from compose.bus import demo
demo.main(Path(sys.argv.pop()), demo.ROWS[:480])
"""
"""Program that runs the demo of the directory in its argument with twenty days."""


@pytest.mark.parametrize("program", ["node", "python"])
def test_the_demo_carries_every_reading_and_every_day_to_site_two(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program == "node" and (why := producer.BUSMQ.install()):
        pytest.skip(f"Node's busmq cannot be installed here: {why}")
    monkeypatch.setenv("PRODUCER", program)
    done = demonstrate(None, *DEMO)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["producer"] == {"node": "Node's busmq", "python": "Python"}[program]
    assert (found["readings"]["got"], found["readings"]["inOrder"]) == (8759, True)
    assert (found["days"]["got"], found["differences"]) == (365, [])
    assert found["months"]["2010/07"] == {"hours": 744, "mean": 64.89, "least": 55.0, "most": 75.9}
    assert found["pauses"] > 0


def test_the_demo_reports_a_reading_that_was_lost_and_one_that_was_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRODUCER", "python")
    shutil.copytree(ROOT / "compose/bus", tmp_path / "copy")
    thief = tmp_path / "thief.py"
    thief.write_text(
        "import os, signal, sys, time, redis\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
        "server = redis.Redis.from_url(os.environ['REDIS'])\n"
        "while server.llen('temps:handled') < 10:\n    time.sleep(0.01)\n"
        "lost = server.rpop('temps:handled')\n"
        "server.rpush('temps:handled', server.lindex('temps:handled', -1))\n"
        "signal.pause()\n"
    )
    with (tmp_path / "copy/Procfile").open("a") as procfile:
        procfile.write(f"thief: exec python {thief}\n")
    done = demonstrate(None, "-c", SAMPLE, "--json", str(tmp_path / "copy"))
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["readings"]["lost"], found["readings"]["doubled"]) == (1, 1)
    assert found["differences"]


def test_the_demo_waits_for_a_gateway_that_starts_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRODUCER", "python")
    shutil.copytree(ROOT / "compose/bus", tmp_path / "copy")
    procfile = tmp_path / "copy/Procfile"
    procfile.write_text(procfile.read_text().replace("gateway: exec", "gateway: sleep 4; exec"))
    done = demonstrate(None, "-c", SAMPLE, "--json", str(tmp_path / "copy"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["days"]["got"] == 20
