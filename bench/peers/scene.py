"""One run of one peer: a directory of its own, its processes, and a clock."""

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
from tests.harness import ROOT

Take = Callable[[int], float]
"""Takes a number of messages; returns what the work's unit says of them."""
LONGEST: Final = 60
"""Seconds that a step may take."""


class DidNotRun(Exception):
    """A peer failed; what it said last is in the message."""


class Scene:
    """Where a peer runs; its processes end with ``opened``."""

    def __init__(self, directory: Path, installed: Installed | None) -> None:
        self.directory, self.installed = directory, installed
        self._marks, self._log = directory / "marks", directory / "log"
        self._marks.touch()
        self._processes: list[subprocess.Popen[str]] = []
        self.ends = ExitStack()

    @classmethod
    @contextmanager
    def opened(cls, installed: Installed | None) -> Iterator["Scene"]:
        with TemporaryDirectory(prefix="penstock-peers-", ignore_cleanup_errors=True) as directory:
            scene = cls(Path(directory), installed)
            with scene.ends:
                yield scene

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, speaks: bool = False
    ) -> subprocess.Popen[str]:
        """A process in a group of its own, which is killed at the end with all that it has started.

        What one that ``speaks`` writes is read by ``answers``; of others it goes to the log.
        """
        with self._log.open("a") as log:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "BENCH_MARKS": str(self._marks), **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if speaks else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._processes.append(process)
        self.ends.callback(_end, process)
        return process

    def marks(self) -> int:
        """How many messages the drivers say have come through."""
        return self._marks.stat().st_size

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for it. Raises ``DidNotRun`` where a process ends first, or it takes too long."""
        end = time.monotonic() + LONGEST
        while not condition():
            self._look(end)
            time.sleep(0.002)

    def flow(self, producer: subprocess.Popen[str], arrived: Callable[[], int] | None = None) -> Take:
        """Messages a second, from the order to the producer until ``arrived`` says that all have come through.

        ``DidNotRun`` where more come through than were sent.
        """
        count, sent = arrived or self.marks, 0

        def take(messages: int) -> float:
            nonlocal sent
            sent += messages
            begin = time.perf_counter()
            self._order(producer, f"{messages}")
            self.until(lambda: count() >= sent)
            seconds = time.perf_counter() - begin
            if count() > sent:
                raise DidNotRun(f"{count():,} have come through, {sent:,} were sent")
            return messages / seconds

        return take

    def answers(self, client: subprocess.Popen[str]) -> Take:
        """Milliseconds that the median request waits."""

        def take(requests: int) -> float:
            self._order(client, f"{requests} 1")
            return 1000 * float(self._said(client)["p50"])

        return take

    def _order(self, process: subprocess.Popen[str], order: str) -> None:
        try:
            print(order, file=process.stdin, flush=True)
        except BrokenPipeError:
            raise DidNotRun(self._last_words(process)) from None

    def _said(self, process: subprocess.Popen[str]) -> Mapping[str, Any]:
        output: IO[str] | None = process.stdout
        assert output is not None
        if not select.select([output], [], [], LONGEST)[0]:
            raise DidNotRun(f"no answer within {LONGEST} s")
        line = output.readline()
        if not line:
            process.wait()
            raise DidNotRun(self._last_words(process))
        said: Mapping[str, Any] = json.loads(line)
        return said

    def _look(self, end: float) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise DidNotRun(self._last_words(process))
        if time.monotonic() > end:
            raise DidNotRun(f"not done within {LONGEST} s, {self.marks():,} messages have come through")

    def _last_words(self, process: subprocess.Popen[str]) -> str:
        said = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower()]
        return f"ended with status {process.returncode}: {(errors or said or ['it said nothing'])[-1]}"


def _end(process: subprocess.Popen[str]) -> None:
    """With its children, also where it has ended itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with process:
        process.wait()
