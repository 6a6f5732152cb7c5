"""A composition: the processes of a Procfile, run together on this machine."""

import asyncio
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from penstock.errors import PenstockError, Problem, SettingsError
from penstock.launch import search_path

T = TypeVar("T")
PROCESS: Final = re.compile(r"([A-Za-z0-9_-]+):\s*(.+)")
"""A line of a Procfile."""
STOP_SECONDS: Final = 40.0
"""Time between SIGTERM and SIGKILL: more than a service's ``stopTimeout``."""

OUTPUT_SECONDS: Final = 5.0
"""Time for the output of a killed child to end: something else that it started may hold it open."""

OBEYED_SIGTERM: Final = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit statuses of a process that obeyed SIGTERM: its own, or the signal's if it does not catch it (a shell's, too)."""
OBEYED: Final = (*OBEYED_SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)
"""The same for a process that obeyed SIGTERM or a user's ctrl-C."""


class Line(NamedTuple):
    """A line of output, as it was written."""

    name: str
    data: bytes
    time: datetime

    @property
    def texts(self) -> list[str]:
        """Return it as text, without its end; several if it has other ends of lines within."""
        return self.data.decode(errors="replace").splitlines()


class _End(NamedTuple):
    name: str
    status: int


class ProcessGroup:
    """The processes of ``directory/Procfile``, started in the current directory, so that ``services`` are found.

    Each runs in a shell, in a process group of its own; ``python`` is the interpreter that runs this. If one ends with
    status 0, the others go on; if one fails, its name is in ``failed``. Call ``write`` with each line of their output,
    by default print it behind the time and the name. Raise ``SettingsError`` for a line that is no process, and
    ``PenstockError`` if there is no Procfile.
    """

    def __init__(
        self, directory: Path, *, write: Callable[[Line], None] | None = None, stop: float = STOP_SECONDS
    ) -> None:
        self.commands = read_procfile(directory / "Procfile")
        self.statuses: dict[str, int] = {}
        """Exit status by name of those that have ended; negative: the signal that ended it."""
        self.failed: list[str] = []
        """Names of those that failed: with a status other than 0 or, once asked to stop, other than ``OBEYED``."""
        self._stop_timeout = stop
        self._write = write or self._print
        self._pids: dict[str, int] = {}
        self._events: queue.Queue[Line | _End] = queue.Queue()
        self._fine: tuple[int, ...] = (0,)
        self._environ: dict[str, str] = {}

    def start(self, environ: Mapping[str, str] | None = None) -> Self:
        """Start all processes; ``environ`` is their whole environment, by default that of this process."""
        self._environ = {"PYTHONUNBUFFERED": "1"} | dict(os.environ if environ is None else environ)
        self._environ["PATH"] = search_path(self._environ)
        for name in self.commands:
            self._begin(name)
        self.poll()
        return self

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a process that runs, and to what it has started; return its process id after its end."""
        self._signal(number, [name])
        self._handle_until(lambda: name in self.statuses)
        return self._pids[name]

    def start_again(self, name: str) -> None:
        """Start a process that has ended; what it was before does not count any more."""
        del self.statuses[name], self._pids[name]
        self.failed = [each for each in self.failed if each != name]
        self._begin(name)

    @property
    def running(self) -> list[str]:
        """Names of those that have not ended at the last ``poll`` or ``stop``."""
        return [name for name in self._pids if name not in self.statuses]

    def poll(self, seconds: float = 0) -> None:
        """Write output and note exits for ``seconds``, or until no process runs."""
        until = time.monotonic() + seconds
        self._handle_until(lambda: not self.running or time.monotonic() >= until)

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Send SIGTERM to all and wait; send SIGKILL after the time limit, or as soon as ``hurry`` returns True."""
        self.poll()
        self._fine = OBEYED
        self._signal(signal.SIGTERM, self.running)
        until = time.monotonic() + self._stop_timeout
        self._handle_until(lambda: not self.running or time.monotonic() >= until or hurry())
        self._signal(signal.SIGKILL, self.running)
        self.poll(OUTPUT_SECONDS)

    def _begin(self, name: str) -> None:
        try:
            process = subprocess.Popen(
                self.commands[name],
                shell=True,
                start_new_session=True,
                env=self._environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:  # not even a shell could be started
            self._events.put(Line(name, f"cannot be started: {error}".encode(), datetime.now().astimezone()))
            self._events.put(_End(name, 126))
            return
        self._pids[name] = process.pid
        threading.Thread(target=self._read, args=(name, process), name=name, daemon=True).start()

    def _read(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout
        with process.stdout as output:
            for line in output:
                self._events.put(Line(name, line, datetime.now().astimezone()))
        self._events.put(_End(name, process.wait()))

    def _print(self, line: Line) -> None:
        width = max(map(len, self.commands))
        for text in line.texts:
            print(f"{line.time:%H:%M:%S} {line.name:{width}} | {for_people(text)}", flush=True)

    def _signal(self, number: signal.Signals, names: Iterable[str]) -> None:
        for name in names:
            with suppress(ProcessLookupError):  # it has ended, and its event is on the way
                os.killpg(self._pids[name], number)

    def _handle_until(self, enough: Callable[[], bool]) -> None:
        """Handle events until ``enough`` returns True and none is left."""
        while True:
            try:
                self._handle(self._events.get(timeout=0 if enough() else 0.1))
            except queue.Empty:
                if enough():
                    return

    def _handle(self, event: Line | _End) -> None:
        if isinstance(event, Line):
            with suppress(BrokenPipeError):  # nobody reads our output: no reason to end a service
                self._write(event)
        else:
            self.statuses[event.name] = event.status
            if event.status not in self._fine:
                self.failed.append(event.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def for_people(text: str) -> str:
    """Return the log line of a service as it is at a terminal, if this is one; any other text unchanged."""
    if not (sys.stdout.isatty() and text.startswith("{")):
        return text
    from structlog.dev import ConsoleRenderer

    try:
        event = json.loads(text)
    except ValueError:
        return text
    is_log = "event" in event and event.pop("timestamp", None)
    return str(ConsoleRenderer()(None, "", event)) if is_log else text


async def stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` and cancel it at the first ctrl-C, SIGTERM or SIGHUP, so that it can end what it has started.

    ``asyncio.run`` cancels at ctrl-C, too, but in the middle of a step: if that step goes on to wait with a time limit
    of 0, as redis-py does, the cancellation is taken for that of the limit and gets lost.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = False

    def cancel() -> None:
        nonlocal cancelled
        if not cancelled:
            cancelled = task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as in background jobs of a shell and under nohup
            asyncio.get_running_loop().add_signal_handler(number, cancel)
    return await work


def read_procfile(file: Path) -> dict[str, str]:
    """Return commands by name. Raise ``SettingsError`` for invalid lines, ``PenstockError`` if the file is missing."""
    try:
        text = file.read_text()
    except OSError as error:
        raise PenstockError(f"{file}: cannot be read: {error.strerror}; a composition has a Procfile") from error
    problems, commands = [], dict[str, str]()
    for number, line in enumerate(text.splitlines(), start=1):
        found = PROCESS.fullmatch(line)
        if found and found[1] in commands:
            problems.append(Problem(f"a second process is called {found[1]!r}: names are unique", str(file), number))
        elif found:
            commands[found[1]] = found[2]
        elif line.strip() and not line.startswith("#"):
            problems.append(Problem(f"expected a process, NAME: COMMAND, not {line!r}", str(file), number))
    if not commands and not problems:
        problems.append(Problem("no process in it: expected lines of the form NAME: COMMAND", str(file)))
    if problems:
        raise SettingsError(problems)
    return commands
