"""Servers, fork servers and sandbox processes end by themselves when the process that started them is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.commandline import running
from tests.support.harness import PATIENCE, ROOT, eventually, until
from tests.support.spec_cases import written

STARTS_ALL = """
import sys, time
from pathlib import Path
from penstock.testing.server import EmbeddedServer
from penstock.testing.forkserver import ForkServer
from tests.reliability.replica import Replica
with EmbeddedServer() as server, ForkServer() as fork_server:
    server.restart()
    given = {"redis": server.url, "in_": "in", "pending": "pending", "out": '["out"]'}
    with Replica(fork_server, "mpush", Path(sys.argv[1]), **given):
        print("started", flush=True)
        time.sleep(600)
"""
KILLED_BETWEEN = """
import asyncio, os, signal, sys
from pathlib import Path
from penstock.composition.model import Part
from penstock.core import child
from penstock.testing import server, service_process

class Killed:
    def __init__(self, pid, *_):
        print(pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

server.Watchdog = child.Watchdog = Killed
if sys.argv[1] == "server":
    server.EmbeddedServer().start()
part = Part("late", command="sleep 600")
asyncio.run(service_process.ServiceProcess(part, dict(os.environ), Path(sys.argv[2]), None).start())
"""
"""A process that is killed after it has started another one, and before that has a watchdog."""
NEVER_ENDS = "tests: [{name: a, push: {in: [a]}, expect: {out: [b]}, within: 600}]"


def assert_ended(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert [each.cmdline() for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("end", "number"),
    [(os.kill, signal.SIGKILL), (os.kill, signal.SIGTERM), (os.killpg, signal.SIGKILL), (os.killpg, signal.SIGTERM)],
)
def test_a_server_and_a_fork_server_end_with_the_process_that_started_them(
    tmp_path: Path, end: Callable[[int, int], None], number: int
) -> None:
    words = [sys.executable, "-c", STARTS_ALL, str(tmp_path / "log")]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout
        assert process.stdout.readline() == b"started\n"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4, "a server, a fork server, a supervisor and its service"
        end(process.pid, number)
    assert_ended(children)


@pytest.mark.parametrize("program", [(), ("late",)], ids=["service", "program"])
async def test_nothing_of_a_sandbox_outlives_a_killed_command(tmp_path: Path, program: tuple[str, ...]) -> None:
    async with running("test", written(tmp_path, NEVER_ENDS, *program), redis=None) as process:
        children = list[psutil.Process]()

        async def started() -> bool:
            children[:] = psutil.Process(process.pid).children(recursive=True)
            return any(each.name().startswith("python") for each in children) and len(children) >= 3

        await eventually(started)
        process.kill()
        await process.wait()
    assert_ended(children)


@pytest.mark.parametrize("kind", ["server", "program"])
def test_what_has_no_watchdog_yet_ends_with_the_process_that_started_it(tmp_path: Path, kind: str) -> None:
    words = [sys.executable, "-c", KILLED_BETWEEN, kind, str(tmp_path / "log")]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        assert process.wait(PATIENCE) == -signal.SIGKILL
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


async def test_the_server_and_the_processes_of_up_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("waits: sleep 600\n")
    async with running("up", tmp_path, redis=None) as process:

        async def started() -> bool:
            children[:] = psutil.Process(process.pid).children(recursive=True)
            return any("sleep" in each.name() for each in children)

        children = list[psutil.Process]()
        await eventually(started)
        process.kill()
        await process.wait()
    assert_ended(children)
