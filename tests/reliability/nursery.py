"""Replicas in milliseconds: processes forked from one that has imported their service already.

``python -m tests.reliability.nursery SOCKET MODULE...`` imports the modules and then forks a process for every
connection to SOCKET that brings an order: its environment, its log, and the module to run as ``python -m`` would. Each
has a keeper, which answers with its pid and, in the end, its exit status, and kills it if whoever asked is gone.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from tests.harness import ROOT, Service, until


class Nursery:
    """The process to fork from; ``python`` interpreters of their own start for every other test of a service."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-nursery-")
        self._socket = str(Path(self._directory.name) / "orders")
        self._process: subprocess.Popen[bytes] | None = None

    def order(self, module: str, environment: Mapping[str, str], log: Path) -> socket.socket:
        """A process; the connection says its pid and its exit status, a line each."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._socket)
        connection.sendall(json.dumps([module, dict(environment), str(log)]).encode() + b"\n")
        return connection

    def __enter__(self) -> Self:
        words = [sys.executable, "-m", "tests.reliability.nursery", self._socket, *self._modules]
        self._process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE)
        until(Path(self._socket).exists)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self._directory.cleanup()


class Replica(Service):
    """A service as ``Service`` has it, started in milliseconds."""

    def __init__(self, nursery: Nursery, name: str, log: Path, **settings: object) -> None:
        super().__init__(name, log, **settings)
        self._nursery = nursery
        self._pid = 0
        self._ended = threading.Event()
        self.status: int | None = None
        """Its exit status; below 0 by a signal."""

    def start(self) -> Self:
        self.log.touch()
        connection = self._nursery.order(self.module, {**os.environ, **self._environment}, self.log)
        said = connection.makefile("rb")
        self._pid = int(said.readline())
        threading.Thread(target=self._await_end, args=(connection, said), daemon=True).start()
        return self

    def _await_end(self, connection: socket.socket, said: Any) -> None:
        with connection, said:
            self.status = int(said.readline())
        self._ended.set()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        return bool(self._pid) and not self._ended.is_set()

    @property
    def listens(self) -> bool:
        """Whether it obeys signals yet: one sooner ends Python itself."""
        return '"settings"' in self.said()

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def wait(self, timeout: float = 20) -> int:
        assert self._ended.wait(timeout), f"{self._pid} still runs after {timeout} s"
        assert self.status is not None
        return self.status

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.running:
            self.kill()
        if error is not None:
            print(self.said()[-4000:])


def serve(path: str, modules: Sequence[str]) -> None:
    """Fork for every connection, until standard input ends with whoever started this."""
    for module in modules:
        import_module(module)
    gc.freeze()  # a replica that ends does not look through all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need no burial
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.unborn")
        listener.listen(64)
        Path(f"{path}.unborn").rename(path)
        orders = listener.fileno()
        while select.select([orders, sys.stdin.fileno()], [], [])[0] == [orders]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                keep(connection)
            connection.close()


def keep(connection: socket.socket) -> NoReturn:
    """Start what ``connection`` orders and stay beside it to its end."""
    ended, news = os.pipe()
    os.set_blocking(news, False)
    signal.set_wakeup_fd(news)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    module, environment, log = json.loads(connection.makefile().readline())
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        become(module, environment, log)
    connection.sendall(b"%d\n" % pid)
    if ended not in select.select([connection.fileno(), ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(b"%d\n" % status)
    os._exit(0)


def become(module: str, environment: dict[str, str], log: str) -> NoReturn:
    """Be ``python -m module``, with that environment and everything said in ``log``."""
    os.environ.clear()
    os.environ.update(environment)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
