"""The web composition, run as by a user, also with a worker that keeps each note twice: the demo must report it."""

import json
import shutil
from pathlib import Path

from tests.support.demos import ROOT, demonstrate

DEMO = """
import sys
from pathlib import Path
from compose.web import demo
demo.main(Path(sys.argv.pop()), rate=60, step=1.5)
"""
"""Program that runs the demo of the directory in its argument with a short load."""


def test_no_request_fails_while_parts_are_killed() -> None:
    done = demonstrate(None, "-c", DEMO, "--json", str(ROOT / "compose/web"))
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert (found["failed"], found["differences"]) == ([], [])
    assert [step["name"] for step in found["steps"]] == [
        *("all run", "worker killed", "importer killed", "router killed", "all run again")
    ]
    assert found["requests"] == 630
    answered = sum(sum(step["statuses"].values()) for step in found["steps"])
    broken = [each for step in found["steps"] for each in step["undone"] if "connection" in each]
    assert answered + len(broken) == 630
    assert found["notes"]["kept"] >= found["notes"]["confirmed"] > 0
    assert set(found["exitStatus"].values()) == {0}


def test_the_demo_reports_a_note_that_is_there_twice(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "compose/web", tmp_path / "copy")
    copier = tmp_path / "copier.py"
    copier.write_text(
        "import os, signal, sys, redis\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
        "server = redis.Redis.from_url(os.environ['REDIS'])\n"
        "while not server.llen('web:notes'):\n    signal.sigtimedwait([], 0.05)\n"
        "server.lpush('web:notes', server.lindex('web:notes', -1))\n"
        "signal.pause()\n"
    )
    with (tmp_path / "copy/Procfile").open("a") as procfile:
        procfile.write(f"copier: exec python {copier}\n")
    done = demonstrate(None, "-c", DEMO, "--json", str(tmp_path / "copy"))
    assert done.returncode == 1, done.stderr
    [difference] = json.loads(done.stdout)["differences"]
    assert difference.endswith("kept 2 times")
