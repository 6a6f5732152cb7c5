"""What a store holds, a page at a time, as people read it: neither a whole store in memory nor a read that lasts.

A read that lasts keeps the owner from shortening its log.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from penstock.outbox.spool import BUS
from penstock.outbox.store import SEPARATOR, TROUBLE, Store
from penstock.outbox.trouble import Trouble, read, spool_name, trouble_with

ROWS: Final = 500
BYTES: Final = 1 << 20
"""Bytes of data after which a page ends."""


class Key(NamedTuple):
    """A key that others are subscribed to here."""

    key: str
    subscribers: int


class Subscriber(NamedTuple):
    """A destination: ``keys`` that it is subscribed to here, ``waiting`` messages for it, ``ours`` there."""

    address: str
    keys: int
    waiting: int
    ours: int
    away: Trouble | None
    """Why it could not be reached the last time, if messages wait for it."""


class Listed(NamedTuple):
    """A message. ``data`` is None unless it was asked for; ``size`` is in bytes."""

    seq: int
    id: bytes
    keys: tuple[str, ...]
    addresses: tuple[str, ...]
    """The sender of an incoming message, the destinations that an outgoing one waits for."""
    size: int
    data: bytes | None
    attempts: int
    error: str


class Letter(NamedTuple):
    """A dead letter, as ``Listed``. ``outgoing``: ``address`` would not take it; else ``address`` has sent it."""

    number: int
    id: bytes
    keys: tuple[str, ...]
    address: str
    outgoing: bool
    size: int
    data: bytes | None
    attempts: int
    error: str
    at: float


class Spooled(NamedTuple):
    """A list of a Redis server, or a queue of a bus, for which messages wait until the server is back."""

    kind: str
    """``list`` or ``queue``."""
    server: str
    """Its URL without login, of a bus the address of its first one."""
    name: bytes
    waiting: int
    away: Trouble | None


def keys(store: Store) -> Iterator[Key]:
    after = ""
    while rows := store.connection.execute(
        "SELECT key, count(*) FROM subscriptions WHERE key > ? GROUP BY key ORDER BY key LIMIT ?", (after, ROWS)
    ).fetchall():
        yield from map(Key._make, rows)
        after = rows[-1][0]


def subscribers(store: Store) -> Iterator[Subscriber]:
    after = ""
    while rows := store.connection.execute(
        "SELECT address, (SELECT count(*) FROM subscriptions s WHERE s.address = d.address),"
        " (SELECT count(*) FROM deliveries WHERE destination = d.id),"
        " (SELECT count(*) FROM subscribed o WHERE o.address = d.address),"
        " (SELECT value FROM meta WHERE name = ? || d.address)"
        " FROM destinations d WHERE address > ? ORDER BY address LIMIT ?",
        (TROUBLE, after, ROWS),
    ).fetchall():
        for *fields, away in rows:
            found = Subscriber._make((*fields, read(away)))
            yield found if found.waiting else found._replace(away=None)
        after = rows[-1][0]


def keys_of(store: Store, address: str) -> list[str]:
    """Return the keys that ``address`` is subscribed to here."""
    found = store.connection.execute("SELECT key FROM subscriptions WHERE address = ? ORDER BY key", (address,))
    return [key for (key,) in found.fetchall()]


def addresses_of(store: Store, key: str) -> list[str]:
    """Return who is subscribed to ``key`` here."""
    found = store.connection.execute("SELECT address FROM subscriptions WHERE key = ? ORDER BY address", (key,))
    return [address for (address,) in found.fetchall()]


def incoming(store: Store, id: bytes | None = None, *, data: bool = False) -> Iterator[Listed]:
    """Yield incoming messages, the oldest first; only that with ``id`` if given."""
    statement = (
        f"SELECT i.seq, i.id, i.keys, i.sender, length(i.data), {_data('i', data)}, coalesce(t.attempts, 0),"
        f" coalesce(t.error, ''), {_sum('i', store, data)} FROM incoming i"
        " LEFT JOIN tries t USING (seq) WHERE i.seq > ?"
    )
    for seq, found, names, sender, size, body, attempts, error, sum in _pages(store, statement, "i.seq", "i.id", id):
        if data:
            store.verify("incoming", sum, seq, found, sender, names, body)
        yield Listed(seq, found, tuple(names.split(SEPARATOR)), (sender,), size, body, attempts, error)


def outgoing(store: Store, id: bytes | None = None, *, data: bool = False) -> Iterator[Listed]:
    """Yield outgoing messages with all destinations that have not acknowledged them."""
    statement = (
        f"SELECT m.seq, m.id, m.keys, (SELECT group_concat(a.address, '{SEPARATOR}') FROM destinations a WHERE EXISTS"
        " (SELECT 1 FROM deliveries d WHERE d.destination = a.id AND d.seq = m.seq)), length(m.data),"
        f" {_data('m', data)}, {_sum('m', store, data)} FROM messages m WHERE m.seq > ?"
    )
    for seq, found, names, waits, size, body, sum in _pages(store, statement, "m.seq", "m.id", id):
        if data:
            store.verify("messages", sum, seq, found, names, body)
        addresses = tuple(sorted((waits or "").split(SEPARATOR)))
        yield Listed(seq, found, tuple(names.split(SEPARATOR)), addresses, size, body, 0, "")


def dead(store: Store, id: bytes | None = None, *, data: bool = False) -> Iterator[Letter]:
    statement = (
        f"SELECT number, id, keys, address, outgoing, length(data), {_data('dead', data)}, attempts, error, at,"
        f" {_sum('dead', store, data)} FROM dead WHERE number > ?"
    )
    for *row, sum in _pages(store, statement, "number", "id", id):
        if data:
            _, found, names, address, outgoing, _, body, attempts, error, _ = row
            store.verify("dead", sum, found, address, outgoing, names, body, attempts, error)
        letter = Letter._make(row)
        keys = (
            (row[2].decode(errors="backslashreplace"),) if isinstance(row[2], bytes) else tuple(row[2].split(SEPARATOR))
        )
        yield letter._replace(keys=keys, outgoing=bool(letter.outgoing))


def spooled(store: Store) -> list[Spooled]:
    """Return the lists and queues for which messages wait."""
    found = store.connection.execute(
        "SELECT server, name, (SELECT count(*) FROM spooled WHERE list = id) AS waiting FROM spools WHERE waiting > 0"
        " ORDER BY server, name"
    )
    return [
        Spooled(
            "queue" if server.startswith(BUS) else "list",
            server.removeprefix(BUS),
            bytes(name),
            waiting,
            trouble_with(store, spool_name(server, bytes(name))),
        )
        for server, name, waiting in found.fetchall()
    ]


def away(store: Store) -> list[Subscriber]:
    """Return the destinations that messages wait for and that could not be reached the last time."""
    return [each for each in subscribers(store) if each.away]


def _data(table: str, wanted: bool) -> str:
    return f"{table}.data" if wanted else "NULL"


def _sum(table: str, store: Store, wanted: bool) -> str:
    return f"{table}.sum" if wanted and store.has_sums else "NULL"


def _pages(store: Store, statement: str, key: str, id_column: str, id: bytes | None) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``statement``, whose first column is ``key``; a page is read at once and has few bytes."""
    only = "" if id is None else f" AND {id_column} = :id"
    statement = f"{statement.replace('> ?', '> :after')}{only} ORDER BY {key} LIMIT {ROWS}"
    after, size = 0, 0
    while True:
        page = list[tuple[Any, ...]]()
        cursor = store.connection.execute(statement, {"after": after, "id": id})
        for row in cursor:
            page.append(row)
            size += sum(len(cell) for cell in row if isinstance(cell, bytes))
            if size > BYTES:
                break
        cursor.close()
        if not page:
            return
        yield from page
        after, size = page[-1][0], 0
