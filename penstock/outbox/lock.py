"""The lock of a data directory: a file that its owner holds with flock, so that the system frees it at any end.

The file names the owner for messages, and says whether the store has a log, which it has as long as it is not closed.
It is removed at a regular end; one that a crash leaves locks nothing.
"""

import fcntl
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.outbox import forks
from penstock.outbox.errors import Locked

NAME: Final = "outbox.lock"
LENGTH: Final = 100
"""Bytes of the file: what is written again needs no room."""
LOOKS: Final = (0.005, 0.02, 0.05)
"""Seconds to wait for those who only look who holds it."""


class Owner(NamedTuple):
    """The process that holds a lock."""

    pid: int | None
    since: str
    """When it took the lock, as ISO 8601 in UTC; empty if unknown."""


class Lock:
    """The lock of ``datadir``, from construction to ``release``. Raise ``Locked`` if a living process holds it."""

    def __init__(self, datadir: Path) -> None:
        self.path = datadir / NAME
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            if not _locks(file):
                owner = _read(file)
                os.close(file)
                raise Locked(datadir, owner.pid, owner.since)
            if _is(file, self.path):
                break
            os.close(file)  # its owner has just removed it
        self._file: int | None = file
        self._pid = os.getpid()
        forks.keep(self)
        self.has_log = _fields(file).get("log") is True
        """Whether the store has a log: its last owner ended without closing it, or this one has it open."""
        self._since = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
        self.note_log(self.has_log)

    def fileno(self) -> int:
        """Return the number of the file that is locked; -1 after ``release``."""
        return -1 if self._file is None else self._file

    def note_log(self, has_log: bool) -> None:
        """Note whether the store has a log: once it is open, and before it is closed."""
        self.has_log = has_log
        if self._file is not None and self._pid == os.getpid():
            written = json.dumps({"pid": os.getpid(), "since": self._since, "log": has_log}).encode()
            os.pwrite(self._file, written.ljust(LENGTH), 0)
            os.fsync(self._file)

    def release(self) -> None:
        """Remove the file, unless the store has a log, then free the lock. Again, or in a fork, does nothing."""
        if self._file is None or self._pid != os.getpid():
            return
        file, self._file = self._file, None
        if not self.has_log:
            self.path.unlink(missing_ok=True)
        os.close(file)


def owner_of(datadir: Path) -> Owner | None:
    """Return the living process that holds the lock of ``datadir``; None if it is free."""
    try:
        file = os.open(datadir / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if _locks(file, fcntl.LOCK_SH) else _read(file)
    finally:
        os.close(file)


def remove_stale(datadir: Path) -> bool:
    """Remove the file that a crash has left; return whether one was there. Raise ``Locked`` if its owner lives."""
    there = (datadir / NAME).exists()
    if there:
        lock = Lock(datadir)
        lock.has_log = False
        lock.release()
    return there


def _locks(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Return whether the lock could be had; another process may hold it for a moment to look (``owner_of``)."""
    for wait in (*LOOKS, None):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait is None:
                return False
            time.sleep(wait)
        else:
            return True
    return False


def _is(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _read(file: int) -> Owner:
    try:
        found = _fields(file)
        return Owner(int(found["pid"]), str(found["since"]))
    except (ValueError, KeyError, TypeError):
        return Owner(None, "")


def _fields(file: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(file, 1024, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
