"""What waits on disk for the lists or queues of a Redis server that is away: see ``penstock.fallback``.

The messages of a list have numbers that rise for ever. ``before`` of a list plus the number of a message is its number
in the ledger of the server; it is None as long as nothing of what waits was sent, and nobody knows the ledger.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from penstock.base.errors import WrongCall
from penstock.outbox.commits import GroupCommit
from penstock.outbox.ids import new_id
from penstock.outbox.store import TO_LIST, Store
from penstock.outbox.store.sums import of_spooled, summed
from penstock.outbox.trouble import NotedTrouble, spool_name
from penstock.outbox.turns import Turns

BUS: Final = "bus "
"""Prefix of the name of a server if messages wait for its queues, not its lists."""
FAR: Final = 1 << 28
"""A number that is this far ahead of the last one sent is from another ledger."""


class Spool:
    """What waits for one list of one server."""

    def __init__(self, store: Store, commits: GroupCommit, turns: Turns, server: str, name: bytes) -> None:
        """``store`` is a connection to read, in the event loop; whoever does so has one of the ``turns``."""
        self._store, self._commits, self._turns, self._key = store, commits, turns, (server, name)
        waiting = "FROM spooled WHERE list = id"
        row = store.connection.execute(
            f"SELECT last, (SELECT min(number) {waiting}), (SELECT count(*) {waiting}) FROM spools"
            " WHERE server = ? AND name = ?",
            self._key,
        ).fetchone()
        last, first, count = row or (0, None, 0)
        self.count: int = count
        self._past: int = last if first is None else first - 1
        """The number of the last message that the server has."""
        self.trouble: Final = NotedTrouble(store, commits, spool_name(server, name))
        self.changed: Callable[[], object] = lambda: None
        """Called when messages are on disk, or will never be."""

    async def begin(self, messages: Sequence[bytes], before: int | None) -> None:
        """Store the first messages of an outage. Raise ``DiskFull``: then none is stored.

        ``before`` is the number in the ledger of the last message before them, if that is known.
        """
        await self._written(len(messages), self._commits.write(_begin, [(self._key, before, messages)]))

    def keep(self, messages: Sequence[bytes]) -> "asyncio.Future[None]":
        """Store more messages, behind all others. The future raises ``DiskFull``: then none is stored."""
        return self._written(len(messages), self._commits.write(_keep, [(self._key, messages)]))

    def _written(self, messages: int, future: "asyncio.Future[None]") -> "asyncio.Future[None]":
        self.count += messages
        future.add_done_callback(partial(self._note, messages))
        return asyncio.shield(future)  # who is cancelled does not know whether it is on disk

    def _note(self, messages: int, future: "asyncio.Future[None]") -> None:
        if future.exception():
            self.count -= messages
        self.changed()

    async def oldest(self, most: int, size: int) -> list[bytes]:
        """Return the oldest messages that are on disk: at most ``most``, and one or ``size`` bytes."""
        async with self._turns.turn():
            return self._read(most, size)

    def _read(self, most: int, size: int) -> list[bytes]:
        cursor = self._store.connection.execute(
            "SELECT sum, list, number, data FROM spools JOIN spooled ON list = id WHERE server = ? AND name = ?"
            " AND number > ? ORDER BY number LIMIT ?",
            (*self._key, self._past, most),
        )
        messages = list[bytes]()
        for row in cursor:
            self._store.verify("spooled", *row)
            data = row[3]
            size -= len(data)
            if messages and size < 0:
                break
            messages.append(data)
        cursor.close()
        return messages

    async def agree(self, arrived: int) -> None:
        """Drop what the server has, of which the last has number ``arrived`` in the ledger; the rest follows that one.

        Return once that is on disk: until then nothing may be sent.
        """
        row = self._store.connection.execute(
            "SELECT id, before, (SELECT max(number) FROM spooled WHERE list = id) FROM spools"
            " WHERE server = ? AND name = ?",
            self._key,
        ).fetchone()
        if row is None:
            return
        id, before, newest = row
        past = self._past
        if before is not None and arrived - before < FAR:
            past = max(past, min(arrived - before, newest or 0))
        if not self.count or (past, before) == (self._past, arrived - past):
            return
        await self._commits.write(_agree, [(id, past, arrived - past)])
        self.count -= past - self._past
        self._past = past

    async def set_aside(self, reason: str) -> None:
        """Make the oldest message, of which nothing was sent since ``agree``, a dead letter. Raise ``DiskFull``."""
        await self._commits.write(_set_aside, [(self._key, self._past + 1, reason)])
        self.count -= 1
        self._past += 1

    def delivered(self, messages: int) -> None:
        """Remove the oldest ``messages`` messages: the server has them."""
        self.count -= messages
        self._past += messages
        self._commits.write_surely(_delivered, [(self._key, self._past)])


class Spools:
    """All that waits for one server, for the one object that pushes to it."""

    def __init__(self, store: Store, commits: GroupCommit, turns: Turns, server: str, in_use: set[str]) -> None:
        """``in_use`` has the servers of all such objects, until ``release``."""
        if server in in_use:
            raise WrongCall(f"the outbox is used for {server} already: expected one `Bus`, or one `Lists`, of a server")
        in_use.add(server)
        self.server: Final = server
        self.source: Final = blake2b(server.encode(), key=store.identity, digest_size=16).hexdigest()
        """The name by which ledgers know what comes from here: one for each line of numbers."""
        self._store, self._commits, self._turns, self._in_use = store, commits, turns, in_use

    def release(self) -> None:
        """Let another one push to the server."""
        self._in_use.discard(self.server)

    def of(self, name: bytes) -> Spool:
        """Return what waits for the list or queue ``name``."""
        return Spool(self._store, self._commits, self._turns, self.server, name)

    def names(self) -> list[bytes]:
        """Return the lists or queues for which messages wait."""
        found = self._store.connection.execute(
            "SELECT name FROM spools WHERE server = ? AND EXISTS (SELECT 1 FROM spooled WHERE list = id)",
            (self.server,),
        )
        return [name for (name,) in found]


def _begin(store: Store, rows: list[Any]) -> None:
    """Forget what has waited before and was delivered, and store messages."""
    for key, before, messages in rows:
        store.connection.execute("INSERT OR IGNORE INTO spools (server, name, last) VALUES (?, ?, 0)", key)
        id, last = _last(store, key)
        store.connection.execute("DELETE FROM spooled WHERE list = ?", (id,))
        number = None if before is None else before - last
        store.connection.execute("UPDATE spools SET before = ? WHERE id = ?", (number, id))
        _keep(store, [(key, messages)])


def _keep(store: Store, kept: list[Any]) -> None:
    for key, messages in kept:
        id, last = _last(store, key)
        rows = summed(of_spooled, [(id, number, data) for number, data in enumerate(messages, last + 1)])
        store.connection.executemany("INSERT INTO spooled (list, number, data, sum) VALUES (?, ?, ?, ?)", rows)
        store.connection.execute("UPDATE spools SET last = ? WHERE id = ?", (last + len(messages), id))


def _last(store: Store, key: tuple[str, bytes]) -> tuple[int, int]:
    row = store.connection.execute("SELECT id, last FROM spools WHERE server = ? AND name = ?", key).fetchone()
    return int(row[0]), int(row[1])


def _agree(store: Store, rows: list[Any]) -> None:
    for id, there, before in rows:
        store.connection.execute("DELETE FROM spooled WHERE list = ? AND number <= ?", (id, there))
        store.connection.execute("UPDATE spools SET before = ? WHERE id = ?", (before, id))


def _set_aside(store: Store, rows: list[Any]) -> None:
    """What comes after it has a number less in the ledger than it would have had."""
    for (server, name), number, reason in rows:
        (id, _), which = _last(store, (server, name)), "WHERE list = ? AND number = ?"
        row = store.connection.execute(f"SELECT sum, list, number, data FROM spooled {which}", (id, number)).fetchone()
        if row is not None:
            store.verify("spooled", *row)
            store.bury(new_id(), server, TO_LIST, name, row[3], 1, reason)
        store.connection.execute(f"DELETE FROM spooled {which}", (id, number))
        store.connection.execute("UPDATE spools SET before = before - 1 WHERE id = ?", (id,))


def _delivered(store: Store, rows: list[Any]) -> None:
    for key, upto in rows:
        store.connection.execute(
            "DELETE FROM spooled WHERE list = (SELECT id FROM spools WHERE server = ? AND name = ?) AND number <= ?",
            (*key, upto),
        )


__all__ = ["BUS", "Spool", "Spools"]
