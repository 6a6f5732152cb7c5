"""Write the lines of a log without waiting for their reader: if it stands still, the service goes on.

A line is written at once, by itself, if that cannot block: to a descriptor of our own that does not wait, since a flag
on the inherited one would be that of the shell and of all who share it. Else a thread writes it, which may wait. What
that has no room for is dropped, and a line behind those that waited says how many were.
"""

import atexit
import os
import select
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

MAX_WAITING: Final = 1_000
MAX_WAITING_BYTES: Final = 1 << 20
"""Lines that wait for a reader, and their bytes."""
END_SECONDS: Final = 1.0
"""Longest wait at the end of the process for lines to be written."""


class Output:
    """Writes lines to ``file``; ``dropped_line`` renders how many were dropped."""

    def __init__(self, file: TextIO, dropped_line: Callable[[int], str]) -> None:
        self._file, self._dropped_line = file, dropped_line
        self._at_once = _opened(file)
        self._lines = deque[bytes]()
        self._size = self._dropped = 0
        self._lock, self._news, self._written = threading.Lock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        atexit.register(self.flush)

    def write(self, line: str) -> None:
        """Write ``line``, now or later, or drop it."""
        data = f"{line}\n".encode(errors="backslashreplace")
        with self._lock:
            if not self._lines and not self._dropped and self._at_once(data):
                return
            if len(self._lines) >= MAX_WAITING or self._size + len(data) > MAX_WAITING_BYTES:
                self._dropped += 1
                return
            self._lines.append(data)
            self._size += len(data)
            self._written.clear()
            if self._thread is None or not self._thread.is_alive():  # none survives a fork
                self._thread = threading.Thread(target=self._run, name="penstock-log", daemon=True)
                self._thread.start()
        self._news.set()

    def flush(self, seconds: float = END_SECONDS) -> None:
        """Wait until all lines are written, for ``seconds`` at most."""
        if self._lines:
            self._written.wait(seconds)

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            while self._lines:
                with suppress(OSError, ValueError):  # the disk is full, or the reader has gone
                    _write_all(self._file, self._lines[0])
                with self._lock:
                    self._size -= len(self._lines.popleft())
                    dropped = self._dropped if not self._lines else 0
                    self._dropped -= dropped
                if dropped:
                    with suppress(OSError, ValueError):
                        _write_all(self._file, f"{self._dropped_line(dropped)}\n".encode())
            with self._lock:
                if not self._lines:  # else one came in the meantime, and `flush` waits for it
                    self._written.set()


def _write_all(file: TextIO, data: bytes) -> None:
    file.buffer.write(data) if hasattr(file, "buffer") else file.write(data.decode())
    file.flush()


def _opened(file: TextIO) -> Callable[[bytes], bool]:
    """Return what writes a line to ``file`` unless that would block, and returns whether it was written."""
    try:
        number = file.fileno()
        kind = os.fstat(number).st_mode
        if stat.S_ISSOCK(kind):
            return _to_socket(socket.socket(fileno=os.dup(number)))
        if stat.S_ISFIFO(kind) or os.isatty(number):
            own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            return _to_pipe(own)
    except PermissionError:  # it is another user's to open
        return lambda _: False
    except (OSError, ValueError, AttributeError):  # it has no descriptor
        pass
    return _to_file(file)


def _to_file(file: TextIO) -> Callable[[bytes], bool]:
    def write(data: bytes) -> bool:
        with suppress(OSError, ValueError):
            _write_all(file, data)
        return True

    return write


def _to_pipe(own: int) -> Callable[[bytes], bool]:
    def write(data: bytes) -> bool:
        if len(data) > select.PIPE_BUF:  # a part of it might be written
            return False
        try:
            return os.write(own, data) == len(data)
        except BlockingIOError:
            return False
        except OSError:
            return True  # nobody reads

    return write


def _to_socket(own: socket.socket) -> Callable[[bytes], bool]:
    def write(data: bytes) -> bool:
        if len(data) > select.PIPE_BUF:
            return False
        try:
            return own.send(data, socket.MSG_DONTWAIT) == len(data)
        except BlockingIOError:
            return False
        except OSError:
            return True

    return write
