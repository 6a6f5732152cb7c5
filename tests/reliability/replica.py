"""Replicas of a service that start in milliseconds, from a fork server."""

import os
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.testing.forkserver import ForkServer
from tests.support.harness import Service


class Replica(Service):
    """A ``Service`` that a fork server starts."""

    def __init__(self, fork_server: ForkServer, name: str, log: Path, **settings: object) -> None:
        super().__init__(name, log, **settings)
        self._fork_server = fork_server
        self.arguments: list[str] = []
        self._pid = 0
        self._ended = threading.Event()
        self.status: int | None = None
        """Exit status, or the negated signal number; None while it runs."""

    def start(self) -> Self:
        self._ended.clear()
        self.log.touch()
        connection = self._fork_server.run(self.module, self.arguments, {**os.environ, **self._environment}, self.log)
        status_lines = connection.makefile("rb")
        self._pid = int(status_lines.readline())
        threading.Thread(target=self._await_end, args=(connection, status_lines), daemon=True).start()
        return self

    def _await_end(self, connection: socket.socket, status_lines: Any) -> None:
        with connection, status_lines:
            self.status = int(status_lines.readline())
        self._ended.set()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        return bool(self._pid) and not self._ended.is_set()

    @property
    def listens(self) -> bool:
        """Return True once it handles signals; before that, a signal would kill Python itself."""
        return '"settings"' in self.log_text()

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def wait(self, timeout: float = 60) -> int:
        assert self._ended.wait(timeout), f"{self._pid} still runs after {timeout} s"
        assert self.status is not None
        return self.status

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.running:
            self.kill()
        if error is not None:
            print(self.log_text()[-4000:])
