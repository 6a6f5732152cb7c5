"""Run every shell block of the tutorials and compare its output with the printed one."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import psutil
import pytest

from penstock.ports import free_port
from tests.support.harness import ROOT

END: Final = "--- end of command, status"
READS: Final = ("lrange", "hget", "hkeys", "hgetall", "llen")
"""Reads that may be repeated until the expected answer: a test types faster than a reader, so delivery may be later."""
RECURSES: Final = re.compile(r"^make test$", re.MULTILINE)


class Shell:
    """A bash session in the repository."""

    def __init__(self, *ports: int) -> None:
        """Replace 6379, 6380 and so on by ``ports``, those of servers, and 8080 and 8090 by free ones."""
        ours = ("MPUSH_", "VPUSH_", "HIMPORTER_", "HQUEUE_", "PENSTOCK_QUEUE_", "REDIS")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.ports = {str(6379 + place): str(port) for place, port in enumerate(ports)}
        self.replaced = self.ports | {"8080": str(free_port()), "8090": str(free_port())}
        environment["HIMPORTER_LISTEN_PORT"] = self.replaced["8080"]
        self._process = subprocess.Popen(
            ["bash"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[str, int]:
        """Run ``command`` on the test's ports; return its output, without log lines, and exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self.ours(command)}\necho '{END}' $?\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if END in line:
                return "".join(lines), int(line.rpartition(" ")[2])
            if not (line.startswith('{"') and '"timestamp": ' in line):  # a service's log
                lines.append(line)
        raise AssertionError(f"the shell ended in {command!r}: {lines}")

    def ours(self, text: str) -> str:
        return re.sub("|".join(self.replaced), lambda port: self.replaced[port[0]], text)

    def close(self) -> None:
        """Kill it and what it started: the processes of a composition are in process groups of their own."""
        started = psutil.Process(self._process.pid).children(recursive=True)
        os.killpg(self._process.pid, signal.SIGKILL)
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.communicate()


@pytest.fixture
def shell() -> Iterator[Shell]:
    session = Shell(free_port(), free_port())
    yield session
    session.close()


def blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(shell|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def examples(block: str) -> list[tuple[str, str]]:
    """Return the commands after ``$``, each with its printed output."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


PAGES: Final = ("tour", "tracking", "lists", "bus", "jobs", "web", "queue", "outbox")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in PAGES)])
def test_every_block_works_as_printed(page: str, shell: Shell) -> None:
    found = blocks((ROOT / page).read_text())
    assert [kind for kind, _ in found].count("console") >= 3
    for kind, block in found:
        if kind == "shell":
            assert not RECURSES.search(block), "a test run inside a test run would never end"
            printed, status = shell.run(block)
            assert (status, "Traceback" in printed) == (0, False), f"{block}\n{printed}"
            continue
        for command, expected in examples(block):
            assert answer(shell, command, shell.ours(expected)) == shell.ours(expected), command


def answer(shell: Shell, command: str, expected: str) -> str:
    end = time.monotonic() + 60
    while True:
        printed, _ = shell.run(f"FAKETTY=1 {command}")
        if printed == expected or not command.split()[1].startswith(READS) or time.monotonic() > end:
            return printed


def test_the_checked_answers_can_be_wrong(shell: Shell) -> None:
    assert answer(shell, "echo two", "one\n") == "two\n"


def test_the_pages_name_every_setting_that_matters() -> None:
    page = (ROOT / "services" / "mpush" / "README.md").read_text()
    printed = subprocess.run(
        [sys.executable, "-m", "services.mpush", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in re.findall(r"^\| `(\w+)`", page.partition("## Settings")[2].partition("## Keys")[0], re.MULTILINE):
        assert f"\n  {name}" in printed, name
