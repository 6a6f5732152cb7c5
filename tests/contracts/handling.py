"""What the handlers of a contract do: a message says what is to happen to its worker, and a journal what happened.

A message is ``NAME``, or ``NAME ACTION TIMES``: what is done the first TIMES times that its handling begins. After that
it is handled.

- ``die``: kill the process; ``fail``: raise; ``cancel``: have the task cancelled, or raise ``CancelledError`` without;
- ``hang``: wait for the file ``go NAME PID`` or ``go NAME``, in a coroutine or a thread; ``block`` does so in the loop.
"""

import asyncio
import os
import signal
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

POLL_SECONDS = 0.005


class Failing(Exception):
    """What a message said."""


class Line(NamedTuple):
    """What a worker has written. ``attempt`` is 0 where none is known.

    ``event`` is ``begun``, ``handled``, or ``left`` if an error or a cancellation has ended the handling.
    """

    event: str
    name: str
    pid: int
    attempt: int


@dataclass(frozen=True)
class Order:
    """What a worker is told. ``url`` is where its messages are.

    ``running`` is how many it may handle at a time, where that is more than one, and ``ahead`` how many it may take.
    """

    url: str
    folder: str
    attempts: int = 3
    lease: float = 60.0
    running: int = 1
    ahead: int = 20

    @property
    def journal(self) -> Path:
        return Path(self.folder, "journal")

    def lines(self) -> list[Line]:
        """Return all that the workers have written, in order."""
        found = [line.split(" ") for line in self.journal.read_text().splitlines()] if self.journal.exists() else []
        return [Line(event, name, int(pid), int(attempt)) for event, name, pid, attempt in found]

    def let(self, name: str, pid: int | None = None) -> None:
        """Let what hangs go on, in one process or all."""
        Path(self.folder, f"go {name}" if pid is None else f"go {name} {pid}").touch()

    async def handle(self, message: str, attempt: int = 0) -> None:
        """Do what ``message`` says."""
        with closing(self._steps(message, attempt)) as steps:
            for blocks in steps:
                if blocks:
                    time.sleep(POLL_SECONDS)  # noqa: ASYNC251  # a handler that blocks the loop
                else:
                    await asyncio.sleep(POLL_SECONDS)

    def handle_blocking(self, message: str, attempt: int = 0) -> None:
        """Do what ``message`` says, in a thread or a process of its own."""
        for _ in self._steps(message, attempt):
            time.sleep(POLL_SECONDS)

    def _steps(self, message: str, attempt: int) -> Generator[bool]:
        """Yield whether the loop is to be blocked while it waits."""
        name, action, times = message.split(" ") if " " in message else (message, "", "0")
        self._write("begun", name, attempt)
        try:
            if sum(line.event == "begun" and line.name == name for line in self.lines()) <= int(times):
                yield from self._act(name, action)
        except BaseException:
            self._write("left", name, attempt)
            raise
        self._write("handled", name, attempt)

    def _act(self, name: str, action: str) -> Generator[bool]:
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "fail":
            raise Failing(f"{name} fails")
        if action == "cancel":
            self._cancel()
        while not any(Path(self.folder, each).exists() for each in (f"go {name}", f"go {name} {os.getpid()}")):
            yield action == "block"

    @staticmethod
    def _cancel() -> None:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # a thread without a loop
            task = None
        if task is None:
            raise asyncio.CancelledError
        task.cancel()

    def _write(self, *words: Any) -> None:
        file = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            event, name, attempt = words
            os.write(file, f"{event} {name} {os.getpid()} {attempt}\n".encode())
        finally:
            os.close(file)
