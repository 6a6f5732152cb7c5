"""Errors of an outbox's store."""

import os
from pathlib import Path

from penstock.base.errors import PenstockError


class Locked(PenstockError):
    """Another process owns the data directory; the message names its pid and since when it has run."""

    def __init__(self, datadir: Path, pid: int | None, since: str) -> None:
        owner = f"process {pid} since {since}" if pid else "another process"
        if pid and not _lives(pid):
            owner = f"a process that process {pid} has started, which itself is gone,"
        super().__init__(f"{datadir} is in use by {owner}: stop it, or choose another datadir")
        self.pid, self.since = pid, since


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


class DiskFull(PenstockError):
    """The store cannot be written (disk full, quota, input/output error). Nothing of the call was stored."""


class Damaged(PenstockError):
    """The file is no store of an outbox, is damaged, or was written by a newer version; the message says which."""
