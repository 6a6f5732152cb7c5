"""A composition: the processes of a Procfile, run together on this machine."""

import asyncio
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from honcho.environ import PROCFILE_LINE, parse_procfile
from honcho.printer import Message, Printer
from honcho.process import Process

from penstock.errors import PenstockError, Problem, SettingsError

T = TypeVar("T")
STOP: Final = 40.0
"""Seconds until a child that was asked to stop is killed: more than a service's ``stopTimeout``."""

LAST_WORDS: Final = 5.0
"""Seconds until a killed child is given up on: something else holds its output open."""

OBEYED: Final = (0, -signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)
"""How a child may end that was asked to: by itself, or by the signal where it does not catch it (a shell's too)."""


class Composition:
    """The processes of ``directory/Procfile``, started in the current directory, so that ``services`` are found.

    Each runs in a shell, in a process group of its own, with ``python`` being the one that runs this. One that ends
    with status 0 is done and the others go on; one that fails is for the caller to see: ``failed``. ``write`` gets
    their output line by line, by default to standard output as honcho prints it. Raises ``SettingsError`` where there
    is no Procfile or a line is no process.
    """

    def __init__(self, directory: Path, *, write: Callable[[Any], None] | None = None, stop: float = STOP) -> None:
        self.commands = read_procfile(directory / "Procfile")
        self.statuses: dict[str, int] = {}
        """Exit status by name, of those that have ended; below 0 by a signal."""
        self.failed: list[str] = []
        """Names of those that ended badly: with another status than 0, or, once asked to stop, not by that."""
        self._stop_timeout = stop
        self._write = write or Printer(sys.stdout, width=max(map(len, self.commands))).write
        self._pids: dict[str, int] = {}
        self._events: queue.Queue[Any] = queue.Queue()
        self._fine: tuple[int, ...] = (0,)

    def start(self, environ: Mapping[str, str] | None = None) -> Self:
        """Start all; ``environ`` is the children's whole environment, by default this process's."""
        environment = {"PYTHONUNBUFFERED": "1"} | dict(os.environ if environ is None else environ)
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
        for name, command in self.commands.items():
            process = Process(command, name=name, env=environment)
            threading.Thread(target=self._run, args=(process,), name=name, daemon=True).start()
        self._handle_until(lambda: len(self._pids.keys() | self.statuses.keys()) == len(self.commands))
        return self

    @property
    def running(self) -> list[str]:
        """Names of those that have not ended, as far as ``poll`` and ``stop`` have seen."""
        return [name for name in self._pids if name not in self.statuses]

    def poll(self, seconds: float = 0) -> None:
        """Write what the children say and see who ends, for so long or until none runs."""
        until = time.monotonic() + seconds
        self._handle_until(lambda: not self.running or time.monotonic() >= until)

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask all that run to stop (SIGTERM) and wait; kill those that have not after the time given, or in a hurry."""
        self.poll()
        self._fine = OBEYED
        self._signal(signal.SIGTERM)
        until = time.monotonic() + self._stop_timeout
        self._handle_until(lambda: not self.running or time.monotonic() >= until or hurry())
        self._signal(signal.SIGKILL)
        self.poll(LAST_WORDS)

    def _run(self, process: Process) -> None:
        try:
            process.run(self._events)
        except OSError as error:  # not even a shell could be started
            now = datetime.now().astimezone()
            self._events.put(Message("line", f"cannot be started: {error}", now, process.name, None))
            self._events.put(Message("stop", {"returncode": 126}, now, process.name, None))

    def _signal(self, number: signal.Signals) -> None:
        for name in self.running:
            with suppress(ProcessLookupError):  # it has ended; the news is under way
                os.killpg(self._pids[name], number)

    def _handle_until(self, enough: Callable[[], bool]) -> None:
        """Handle events until it is enough and none is left."""
        while True:
            try:
                self._handle(self._events.get(timeout=0 if enough() else 0.1))
            except queue.Empty:
                if enough():
                    return

    def _handle(self, event: Message) -> None:
        if event.type == "start":
            self._pids[event.name] = event.data["pid"]
        elif event.type == "line":
            with suppress(BrokenPipeError):  # nobody reads on: no reason for a service to end
                self._write(event)
        else:
            self.statuses[event.name] = event.data["returncode"]
            if event.data["returncode"] not in self._fine:
                self.failed.append(event.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


async def stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Do ``work``, which the first ctrl-C, SIGTERM or SIGHUP cancels, so that what it has started is ended with it.

    ``asyncio.run`` cancels at ctrl-C, too, but amid whatever runs just then: where that is a task which goes on to wait
    with a time limit of 0, as redis-py does, the cancellation is taken for that of the limit, and lost.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = False

    def cancel() -> None:
        nonlocal cancelled
        if not cancelled:
            cancelled = task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell's background jobs and nohup have some
            asyncio.get_running_loop().add_signal_handler(number, cancel)
    return await work


def read_procfile(file: Path) -> dict[str, str]:
    """Command by name. Raises ``SettingsError`` for lines that are no process, ``PenstockError`` without a file."""
    try:
        text = file.read_text()
    except OSError as error:
        raise PenstockError(f"{file}: cannot be read: {error.strerror}; a composition has a Procfile") from error
    problems, seen = [], set()
    for number, line in enumerate(text.splitlines(), start=1):
        found = PROCFILE_LINE.match(line)
        if found and found[1] in seen:
            problems.append(Problem(f"a second process is called {found[1]!r}: names are unique", str(file), number))
        elif found:
            seen.add(found[1])
        elif line.strip() and not line.startswith("#"):
            problems.append(Problem(f"expected a process, NAME: COMMAND, not {line!r}", str(file), number))
    if not seen and not problems:
        problems.append(Problem("no process in it: expected lines of the form NAME: COMMAND", str(file)))
    if problems:
        raise SettingsError(problems)
    return dict(parse_procfile(text).processes)
