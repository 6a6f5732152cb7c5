"""The lock of a data directory: a file that its owner holds with flock, so that the system frees it at any end.

The file names the owner for messages alone. It is removed at a regular end; one that a crash leaves locks nothing.
"""

import fcntl
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from penstock.outbox.errors import Locked

NAME: Final = "outbox.lock"
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
        os.ftruncate(file, 0)
        since = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
        os.pwrite(file, json.dumps({"pid": os.getpid(), "since": since}).encode(), 0)

    def release(self) -> None:
        """Remove the file, then free the lock. A second call does nothing."""
        if self._file is None:
            return
        file, self._file = self._file, None
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
        Lock(datadir).release()
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
        found = json.loads(os.pread(file, 1024, 0))
        return Owner(int(found["pid"]), str(found["since"]))
    except (ValueError, KeyError, TypeError):
        return Owner(None, "")
