"""The processes of a Procfile, run together on this machine."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from penstock.base.errors import PenstockError, Problem, SettingsError
from penstock.base.launch import search_path
from penstock.core.child import STOP_SECONDS, Child
from penstock.core.tasks import begin

T = TypeVar("T")
PROCESS: Final = re.compile(r"([A-Za-z0-9_-]+):\s*(.+)")
"""A line of a Procfile."""

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


class _ChildOfGroup(Child):
    orphaned = signal.SIGTERM


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
        self._children: dict[str, Child] = {}
        self._pids: dict[str, int] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._fine: tuple[int, ...] = (0,)

    async def start(self, environ: Mapping[str, str] | None = None) -> Self:
        """Start all processes; ``environ`` is their whole environment, by default that of this process."""
        environ = {"PYTHONUNBUFFERED": "1"} | dict(os.environ if environ is None else environ)
        environ["PATH"] = search_path(environ)
        for name, command in self.commands.items():
            self._children[name] = _ChildOfGroup(name, command, environ, partial(self._said, name))
            await self._begin(name)
        return self

    async def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a process that runs, and to what it has started; return its process id after its end."""
        self._children[name].send(number)
        await asyncio.wait({self._ends[name]})
        return self._pids[name]

    async def start_again(self, name: str) -> None:
        """Start a process that has ended; what it was before does not count any more."""
        del self.statuses[name]
        self.failed = [each for each in self.failed if each != name]
        await self._begin(name)

    @property
    def running(self) -> list[str]:
        """Names of those that have not ended."""
        return [name for name, end in self._ends.items() if not end.done()]

    async def wait(self, order: asyncio.Event) -> None:
        """Wait until no process runs, one has failed, or ``order`` is set."""
        await self._wait(order, lambda: bool(self.failed))

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Send SIGTERM to all and wait; send SIGKILL after the time limit, or as soon as ``hurry`` is set."""
        self._fine = OBEYED
        for number, order, seconds in (
            (signal.SIGTERM, hurry or asyncio.Event(), self._stop_timeout),
            (signal.SIGKILL, asyncio.Event(), OUTPUT_SECONDS),
        ):
            for name in self.running:
                self._children[name].send(number)
            await self._wait(order, lambda: False, seconds)

    async def _wait(self, order: asyncio.Event, enough: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait until no process runs, ``order`` is set, ``enough`` returns True, or for ``seconds``.

        Raise what ``write`` has raised.
        """
        ordered = asyncio.create_task(order.wait())
        try:
            async with asyncio.timeout(seconds):
                while self.running and not ordered.done() and not enough():
                    ends = {self._ends[name] for name in self.running}
                    done, _ = await asyncio.wait({ordered, *ends}, return_when=asyncio.FIRST_COMPLETED)
                    for end in done & ends:
                        end.result()
        except TimeoutError:
            return
        finally:
            ordered.cancel()

    async def _begin(self, name: str) -> None:
        child = self._children[name]
        try:
            await child.start()
        except OSError as error:  # not even a shell could be started
            self._said(name, f"cannot be started: {error}".encode())
            self._note_end(name, 126)
        else:
            self._pids[name] = child.pid or 0
            self._ends[name] = begin(self._until_end(child))

    async def _until_end(self, child: Child) -> None:
        self._note_end(child.name, await child.wait())

    def _note_end(self, name: str, status: int) -> None:
        self.statuses[name] = status
        if status not in self._fine:
            self.failed.append(name)

    def _said(self, name: str, data: bytes) -> None:
        with suppress(OSError):  # nobody reads our output, or the disk is full: no reason to end a service
            self._write(Line(name, data, datetime.now().astimezone()))

    def _print(self, line: Line) -> None:
        width = max(map(len, self.commands))
        for text in line.texts:
            print(f"{line.time:%H:%M:%S} {line.name:{width}} | {for_people(text)}", flush=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def for_people(text: str) -> str:
    """Return the log line of a service as it is at a terminal, if this is one; any other text unchanged."""
    if not (sys.stdout.isatty() and text.startswith("{")):
        return text
    from structlog.dev import ConsoleRenderer

    try:
        event = json.loads(text)
        is_log = "event" in event and event.pop("timestamp", None)
        return str(ConsoleRenderer()(None, "", event)) if is_log else text
    except (ValueError, TypeError):  # another program's, with fields of its own
        return text


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
