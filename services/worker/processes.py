"""Several processes of worker, watched by one: replaced in turn at SIGHUP, and started again if they fail."""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from common.settings.cli import parse
from services.worker.settings import Settings

WATCHED: Final = "PENSTOCK_WORKER_PARENT"
"""The environment variable with which a process knows the one that watches it."""
READY: Final = "PENSTOCK_WORKER_READY"
"""The environment variable with the file to which a process writes once it does jobs."""
READY_SECONDS: Final = 30.0
"""Longest wait for that in the middle of a reload: the server may be away."""
LOOK_SECONDS: Final = 0.1
STOP_LOOK_SECONDS: Final = 0.02
MAX_WAIT: Final = 30.0
STOP_MARGIN: Final = 5.0
"""Seconds beyond ``stopTimeout`` after which a process that is to stop is killed."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WRONG_SETTINGS: Final = 2


def supervised() -> bool:
    """Return False in a process that does jobs; else watch as many as ``processes`` says, and exit."""
    if os.environ.get(WATCHED):
        return False
    settings = parse(Settings, sys.argv[1:], os.environ, waits=True)
    if settings.processes == 1:
        return False
    sys.exit(Supervisor(settings.processes, settings.stop_timeout).run())


def parent_has_gone() -> bool:
    """Return whether the process that watches this one has ended."""
    parent = os.environ.get(WATCHED)
    return parent is not None and os.getppid() != int(parent)


def note_ready() -> None:
    """Tell the process that watches this one that it does jobs; a second call tells nothing."""
    if file := os.environ.pop(READY, None):
        with suppress(BrokenPipeError):  # nobody waits for it
            os.write(int(file), b"!")
        os.close(int(file))


class Supervisor:
    """Runs ``many`` processes until a signal, or until all have ended by order."""

    def __init__(self, many: int, stop_timeout: float) -> None:
        self._many, self._stop_timeout = many, stop_timeout
        self._running: list[subprocess.Popen[bytes]] = []
        self._failures, self._failed_at, self._start_at = 0, 0.0, 0.0
        self._missing = many
        """How many are to be started."""

    def run(self) -> int:
        """Return the exit status: 0 after an order, 2 if the settings became wrong."""
        while True:
            if self._missing and time.monotonic() >= self._start_at:
                os.close(self._start())
            number = signal.sigtimedwait(SIGNALS, LOOK_SECONDS)
            if number is not None and number.si_signo == signal.SIGHUP:
                if not self._reload():
                    return self._stop(self._running)
            elif number is not None:
                return self._stop(self._running)
            for process in [each for each in self._running if each.poll() is not None]:
                self._running.remove(process)
                if process.returncode == WRONG_SETTINGS:
                    self._stop(self._running)
                    return WRONG_SETTINGS
                if process.returncode != 0:
                    self._failed()
            if not self._running and not self._missing:
                return 0  # their registrations were deleted

    def _start(self) -> int:
        """Start a process; return a file that has something to read once it does jobs, or ends if it fails before."""
        ready, told = os.pipe()
        environment = {**os.environ, WATCHED: str(os.getpid()), READY: str(told)}
        safe = ["-P"] if sys.flags.safe_path else []  # the folder may have a package `services` of its own
        command = [sys.executable, *safe, "-m", "services.worker", *sys.argv[1:]]
        self._running.append(subprocess.Popen(command, env=environment, pass_fds=[told]))
        os.close(told)
        self._missing -= 1
        return ready

    def _failed(self) -> None:
        """Start another process instead of one that has failed, later each time."""
        now = time.monotonic()
        self._failures = self._failures + 1 if now - self._failed_at < 2 * MAX_WAIT else 1
        self._missing += 1
        self._failed_at, self._start_at = now, now + min(0.1 * 2**self._failures, MAX_WAIT)

    def _reload(self) -> bool:
        """Read the settings, and replace each process by one that reads them and the code again, once that does jobs.

        Settings that cannot be used change nothing; if a new process fails, the others stay. Return False if an order
        to stop came meanwhile.
        """
        try:
            settings = parse(Settings, sys.argv[1:], os.environ, waits=True)
        except SystemExit as exit:  # which has printed why
            return bool(exit.code)
        self._many, self._stop_timeout = settings.processes, settings.stop_timeout
        self._failures, self._missing = 0, 0
        for process in tuple(self._running):
            if _is_ordered_to_stop():
                return True  # `run` obeys
            self._stop([process])
            self._running.remove(process)
            if len(self._running) < self._many:
                self._missing = 1
                if not _becomes_ready(self._start()):
                    break
        self._missing = max(0, self._many - len(self._running))
        return True

    def _stop(self, processes: list[subprocess.Popen[bytes]]) -> int:
        """Stop processes, and all if an order comes meanwhile; return the highest status of ``processes``."""
        for process in processes:
            process.terminate()
        until = time.monotonic() + self._stop_timeout + STOP_MARGIN
        status = 0
        for process in processes:
            while process.poll() is None and time.monotonic() < until:
                if _is_ordered_to_stop():
                    for each in self._running:
                        each.terminate()
                time.sleep(STOP_LOOK_SECONDS)
            if process.poll() is None:
                process.kill()
                process.wait()
            status = max(status, process.returncode if process.returncode >= 0 else 1)
        return status


def _becomes_ready(file: int) -> bool:
    """Wait until a new process does jobs; return False if it fails before."""
    until = time.monotonic() + READY_SECONDS
    try:
        while time.monotonic() < until and not _is_ordered_to_stop():
            if select.select([file], [], [], LOOK_SECONDS)[0]:
                return bool(os.read(file, 1))
    finally:
        os.close(file)
    return True


def _is_ordered_to_stop() -> bool:
    """Return whether a signal to stop waits."""
    return not signal.sigpending().isdisjoint((signal.SIGTERM, signal.SIGINT))
