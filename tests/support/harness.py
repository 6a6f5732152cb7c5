"""Services as processes with logs, which tests start, stop and kill."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.core.orphaned import Watchdog

ROOT = Path(__file__).parent.parent.parent
PATIENCE: Final = float(os.environ.get("PENSTOCK_TEST_PATIENCE", 60))
"""Seconds that a test waits at most for what a process, a server or a task does."""
USUAL_ROUNDS: Final = 20
ROUNDS: Final = int(os.environ.get("PENSTOCK_ROUNDS", USUAL_ROUNDS))
"""How often a test repeats what it does at a random moment."""
LEAST_FAULTS: Final = 12
"""Minimum number of faults that are drawn: by chance, a process may not come to some of them."""


def rounds(enough: Callable[[], object] = lambda: True) -> Iterator[int]:
    """Count to ``ROUNDS``, and on until ``enough`` returns True, but at most to ten times ``ROUNDS``."""
    for number in count():
        if number >= ROUNDS and (enough() or number >= 10 * ROUNDS):
            return
        yield number


def sampled(faults: int) -> int | None:
    """Return how many faults a chaos run draws: ``faults``, fewer with few rounds; None, for all, with many."""
    return min(faults, max(LEAST_FAULTS, faults * ROUNDS // USUAL_ROUNDS)) if ROUNDS <= USUAL_ROUNDS else None


class Service:
    """``python -m services.<name>`` of ``folder`` with ``settings`` (as in a props file) given by the environment."""

    folder = ROOT

    def __init__(self, name: str, log: Path, **settings: object) -> None:
        self.module, self.log = f"services.{name}", log
        self._environment = {
            f"{name.upper()}_{setting.upper().strip('_')}": _as_text(value) for setting, value in settings.items()
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog
        self._logged = 0
        """How many bytes its log had when it started."""

    def start(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), **self._environment}
        with self.log.open("ab") as log:
            self._logged = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module], cwd=self.folder, env=environment, stderr=log, stdout=log
            )
        self._watchdog = Watchdog(self.process.pid)
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end and return the exit status."""
        assert self.process is not None
        status = self.process.wait(timeout)
        self._watchdog.release()
        return status

    def stop(self, timeout: float = PATIENCE) -> int:
        """Send SIGTERM, once Python has begun to run the service, and return the exit status."""
        until(self._heeds_sigterm, timeout)
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def _heeds_sigterm(self) -> bool:
        """Return whether SIGTERM does not simply end it: it holds it back, has a handler, has said something, or ended.

        What waits for signals and nothing else does not seem to hold them back.
        """
        if self.log.stat().st_size > self._logged:
            return True
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return True
        fields = dict(line.split(":", 1) for line in lines)
        blocked, caught = (int(fields.get(name, "0"), 16) for name in ("SigBlk", "SigCgt"))
        return "Z" in fields["State"] or bool((blocked | caught) >> (signal.SIGTERM - 1) & 1)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def runs(self) -> bool:
        """Return True; fail with the end of the log if the process has ended."""
        assert self.process
        assert self.process.poll() is None, self.log_text()[-2000:]
        return True

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.signal(signal.SIGKILL)
            self.wait()
        if error is not None:
            print(self.log_text()[-4000:])


async def eventually(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true, or, if it is awaitable, its result is; raise ``TimeoutError`` at the end."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.005)


def until(condition: Callable[[], object], timeout: float = PATIENCE, every: float = 0.01) -> None:
    """Wait until ``condition`` returns True; fail with its name after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"did not come true in {timeout} s: {condition}"
        time.sleep(every)


def _as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def for_each(files: Iterable[Path], check: Callable[[Path], object]) -> None:
    """Call ``check`` with each file of the repository; an error names the file."""
    for file in files:
        try:
            check(file)
        except AssertionError as error:
            error.add_note(f"of {file.relative_to(ROOT)}")
            raise
