"""A child that a program with an outbox forks: it has neither its lock nor its port, and ends nothing of it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.base.ports import free_port
from penstock.outbox import Locked
from penstock.outbox.lock import Lock
from tests.outbox.outboxes import Got, outbox, subscribed

PARENT = """
import asyncio, os, signal, sys
from penstock.outbox import Outbox

async def main():
    async with Outbox(datadir=sys.argv[1], bind=sys.argv[2]) as outbox:
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        print(child, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""
RELEASE = """
import os, sys
from pathlib import Path
from penstock.outbox.lock import Lock
lock = Lock(Path(sys.argv[1]))
child = os.fork()
if not child:
    lock.note_log(True)
    lock.release()
    os._exit(0)
os.waitpid(child, 0)
print(lock.path.exists(), lock.path.read_text())
"""


async def test_an_outbox_whose_process_is_killed_opens_while_its_child_lives(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", PARENT, tmp_path, address], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout
    child = int(await asyncio.to_thread(parent.stdout.readline))
    try:
        parent.kill()
        await asyncio.to_thread(parent.wait)
        os.kill(child, 0)
        async with outbox(tmp_path, address) as again, outbox(tmp_path / "other") as other:
            got = Got()
            other.all(got)
            await subscribed(other, again, "k")
            await again.publish("k", "x")
            await got.wait_for("x")
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_child_neither_frees_nor_changes_the_lock(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RELEASE, tmp_path], capture_output=True, text=True, check=True)
    exists, _, content = done.stdout.partition(" ")
    assert exists == "True"
    assert json.loads(content)["log"] is False


def test_a_lock_that_a_child_holds_names_no_process_that_is_gone(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock.path.write_text(json.dumps({"pid": gone.pid, "since": "then"}))
    with pytest.raises(Locked, match=f"a process that process {gone.pid} has started, which itself is gone"):
        Lock(tmp_path)
    lock.release()
