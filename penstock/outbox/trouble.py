"""Why messages wait: the last error of each destination, list and queue, and since when, for those who look."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from penstock.outbox.commits import GroupCommit
from penstock.outbox.errors import DiskFull
from penstock.outbox.store import TROUBLE, Store


class Trouble(NamedTuple):
    error: str
    since: float
    """Seconds since the epoch, by the system's clock."""


class NotedTrouble:
    """The trouble with ``what``, an address or the name of a spool, as the store has it."""

    def __init__(self, reader: Store, commits: GroupCommit, what: str) -> None:
        self._commits, self._what = commits, what
        self._now = trouble_with(reader, what)

    def note(self, error: str) -> None:
        """Have ``error`` written if it is another than before; an empty one ends the trouble."""
        was, self._now = self._now, Trouble(error, self._now.since if self._now else time.time()) if error else None
        if self._now != was and not self._commits.is_closed:
            self._commits.write(_note, [(self._what, self._now)]).add_done_callback(_ignore_full_disk)


def trouble_with(store: Store, what: str) -> Trouble | None:
    row = store.connection.execute("SELECT value FROM meta WHERE name = ?", (TROUBLE + what,)).fetchone()
    return read(row[0] if row else None)


def read(value: str | None) -> Trouble | None:
    return None if value is None else Trouble(*json.loads(value))


def spool_name(server: str, name: bytes) -> str:
    return f"{server} {name.hex()}"


def _note(store: Store, rows: Sequence[tuple[str, Trouble | None]]) -> None:
    for what, trouble in rows:
        if trouble is None:
            store.connection.execute("DELETE FROM meta WHERE name = ?", (TROUBLE + what,))
        else:
            store.put(TROUBLE + what, json.dumps(trouble))


def _ignore_full_disk(future: "asyncio.Future[None]") -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, DiskFull):
        raise error


__all__ = ["NotedTrouble", "Trouble", "read", "spool_name", "trouble_with"]
