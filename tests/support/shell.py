"""A shell that runs the examples of a page, and compares what they print."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from penstock.base.ports import free_port
from penstock.core.orphaned import Watchdog
from tests.support.harness import ROOT

END: Final = "--- end of command, status"
READS: Final = ("lrange", "hget", "hkeys", "hgetall", "llen")
"""Reads that may be repeated until the expected answer: a test types faster than a reader, so delivery may be later."""


class Shell:
    """A bash session in the repository, or in ``cwd``."""

    def __init__(self, *ports: int, cwd: Path = ROOT, environment: Mapping[str, str] = os.environ) -> None:
        """Replace 6379, 6380 and so on by ``ports``, those of servers, and 8080 and 8090 by free ones."""
        ours = ("MPUSH_", "VPUSH_", "HIMPORTER_", "HQUEUE_", "PENSTOCK_QUEUE_", "REDIS")
        environment = {name: value for name, value in environment.items() if not name.startswith(ours)}
        self.ports = {str(6379 + place): str(port) for place, port in enumerate(ports)}
        self.replaced = self.ports | {"8080": str(free_port()), "8090": str(free_port())}
        environment["HIMPORTER_LISTEN_PORT"] = self.replaced["8080"]
        self._process = subprocess.Popen(
            ["bash"],
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._watchdog = Watchdog(self._process.pid)

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
        self._watchdog.release()


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the kind and the text of each block that names its language, those of lists, which are indented, too."""
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [(kind, re.sub(f"^{indent}", "", block, flags=re.MULTILINE)) for indent, kind, block in found]


def examples(block: str) -> list[tuple[str, str]]:
    """Return the commands after ``$``, each with its printed output."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def answer(shell: Shell, command: str, expected: str) -> str:
    end = time.monotonic() + 60
    while True:
        printed, _ = shell.run(f"FAKETTY=1 {command}")
        if printed == expected or not command.split()[1].startswith(READS) or time.monotonic() > end:
            return printed
