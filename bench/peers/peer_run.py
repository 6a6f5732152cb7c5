"""One run of one peer: its own directory, its processes, and timing."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

from bench.peers.install import Installed
from tests.support.harness import ROOT

Measure = Callable[[int], float]
"""A function that passes a number of messages and returns the figure in the work's unit."""
STEP_SECONDS: Final = 60
"""Maximum seconds of a step."""


class PeerFailed(Exception):
    """A peer failed; the message has its last output."""


class PeerRun:
    """A run of a peer; its processes are killed at the end of ``opened``."""

    def __init__(self, directory: Path, installed: Installed | None) -> None:
        self.directory, self.installed = directory, installed
        self._marks, self._log = directory / "marks", directory / "log"
        self._marks.touch()
        self._processes: list[subprocess.Popen[str]] = []
        self.exit_stack = ExitStack()

    @classmethod
    @contextmanager
    def opened(cls, installed: Installed | None) -> Iterator["PeerRun"]:
        with TemporaryDirectory(prefix="penstock-peers-", ignore_cleanup_errors=True) as directory:
            run = cls(Path(directory), installed)
            with run.exit_stack:
                yield run

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, piped: bool = False
    ) -> subprocess.Popen[str]:
        """Start a process in its own group; the whole group is killed at the end.

        Its stdout goes to the log, or with ``piped`` to a pipe that ``latency`` reads.
        """
        with self._log.open("a") as log:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "BENCH_MARKS": str(self._marks), **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._processes.append(process)
        self.exit_stack.callback(_kill_group, process)
        return process

    def marks(self) -> int:
        """Return the number of messages that the drivers have reported as arrived."""
        return self._marks.stat().st_size

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for ``condition``. Raise ``PeerFailed`` if a process ends first, or after ``STEP_SECONDS``."""
        end = time.monotonic() + STEP_SECONDS
        while not condition():
            self._check(end)
            time.sleep(0.002)

    def throughput(self, producer: subprocess.Popen[str], arrived: Callable[[], int] | None = None) -> Measure:
        """Return a function that measures messages a second, from the order to ``producer`` until all have arrived.

        ``arrived`` counts them (default: the marks). Raise ``PeerFailed`` if more arrive than were sent.
        """
        count, sent = arrived or self.marks, 0

        def measure(messages: int) -> float:
            nonlocal sent
            sent += messages
            begin = time.perf_counter()
            self._send(producer, f"{messages}")
            self.until(lambda: count() >= sent)
            seconds = time.perf_counter() - begin
            if count() > sent:
                raise PeerFailed(f"{count():,} have come through, {sent:,} were sent")
            return messages / seconds

        return measure

    def latency(self, client: subprocess.Popen[str]) -> Measure:
        """Return a function that measures the median wait of a request, in milliseconds."""

        def measure(requests: int) -> float:
            self._send(client, f"{requests} 1")
            return 1000 * float(self._read_reply(client)["p50"])

        return measure

    def _send(self, process: subprocess.Popen[str], order: str) -> None:
        try:
            print(order, file=process.stdin, flush=True)
        except BrokenPipeError:
            raise PeerFailed(self._failure(process)) from None

    def _read_reply(self, process: subprocess.Popen[str]) -> Mapping[str, Any]:
        output: IO[str] | None = process.stdout
        assert output is not None
        if not select.select([output], [], [], STEP_SECONDS)[0]:
            raise PeerFailed(f"no answer within {STEP_SECONDS} s")
        line = output.readline()
        if not line:
            process.wait()
            raise PeerFailed(self._failure(process))
        reply: Mapping[str, Any] = json.loads(line)
        return reply

    def _check(self, end: float) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise PeerFailed(self._failure(process))
        if time.monotonic() > end:
            raise PeerFailed(f"not done within {STEP_SECONDS} s, {self.marks():,} messages have come through")

    def _failure(self, process: subprocess.Popen[str]) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return f"ended with status {process.returncode}: {(errors or lines or ['it said nothing'])[-1]}"


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill the process group, even if the process itself has ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with process:
        process.wait()
