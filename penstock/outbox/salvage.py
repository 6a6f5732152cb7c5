"""Copies what verifies of a store that is damaged into a new one."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.base.errors import WrongCall
from penstock.outbox.lock import Lock
from penstock.outbox.schema import BODIES, OUTGOING
from penstock.outbox.store import NAME, Store, log
from penstock.outbox.store.sums import COLUMNS, verifies

COPY: Final = "damaged.db"
TABLES: Final = (
    "meta", "destinations", "subscriptions", "subscribed", "messages", "deliveries", "incoming", "begun", "tries",
    "seen", "dead", "spools", "spooled",
)  # fmt: skip
"""All but ``shared``, which follows from ``deliveries``; what names what before what is named by it."""
NOT_WHOLE: Final = (
    *OUTGOING,
    *BODIES,
    ("tries", "seq NOT IN (SELECT seq FROM incoming)", "are of a message that is not whole"),
    ("spooled", "list NOT IN (SELECT id FROM spools)", "are for a list that is not known"),
)
IN_INDEX: Final = "SELECT 1 FROM destinations INDEXED BY sqlite_autoindex_destinations_1 WHERE address = ? AND id = ?"
"""An address has no checksum, and is in the table and in its index: what differs may be another's."""


class Salvaged(NamedTuple):
    """What became of the rows of a table."""

    table: str
    copied: int
    lost: list[str]
    """What was not copied, and why."""


def salvage(datadir: Path, target: Path) -> list[Salvaged]:
    """Copy what verifies of the store in ``datadir`` into ``target``, which must not exist; change nothing in datadir.

    Raise ``Locked`` if it is in use, ``WrongCall`` if it has neither a store nor a log, ``OSError``.
    """
    path, copy = datadir / NAME, target / COPY
    lock = Lock(datadir)
    try:
        if not (path.exists() or log.log_of(path).exists()):
            raise WrongCall(f"{datadir} has no {NAME}")
        target.mkdir(0o700, parents=True)
        for source, there in ((path, copy), (log.log_of(path), log.log_of(copy))):
            if source.exists():
                shutil.copyfile(source, there)
    finally:
        lock.release()
    frames, broken = log.apply(copy)
    found = [Salvaged("log", frames, [f"{broken:,} pages do not verify"] if broken else [])]
    try:
        with closing(Store.open(target)) as store, closing(sqlite3.connect(copy, isolation_level=None)) as damaged:
            damaged.text_factory = lambda text: text.decode(errors="surrogateescape")
            with store.transaction():
                found += _copied(damaged, store)
    finally:
        for file in target.glob(f"{COPY}*"):
            file.unlink()
    return found


def _copied(damaged: sqlite3.Connection, store: Store) -> list[Salvaged]:
    db, lost = store.connection, dict[str, list[str]]()
    unsummed = _is_converted(damaged)
    for table in TABLES:
        lost[table] = list(_copy(damaged, db, table, unsummed=unsummed))
    store.sum_meta()
    for table, which, why in NOT_WHOLE:
        if count := db.execute(f"DELETE FROM {table} WHERE {which}").rowcount:
            lost[table].append(f"{count:,} {why}")
    db.execute("INSERT INTO shared SELECT seq, count(*) FROM deliveries GROUP BY seq HAVING count(*) > 1")
    return [Salvaged(table, db.execute(f"SELECT count(*) FROM {table}").fetchone()[0], lost[table]) for table in TABLES]


def _copy(damaged: sqlite3.Connection, db: sqlite3.Connection, table: str, *, unsummed: bool) -> Iterator[str]:
    """Copy the rows of ``table`` from both ends up to what cannot be read; yield what is not copied."""
    info = db.execute(f"PRAGMA table_info({table})").fetchall()
    key = [row[1] for row in sorted(info, key=lambda row: row[5]) if row[5]]
    verb = "REPLACE" if table == "meta" else "IGNORE"
    wrong = 0
    for order in ("ASC", "DESC"):
        by = ", ".join(f"{each} {order}" for each in key)
        try:
            cursor = damaged.execute(f"SELECT * FROM {table} ORDER BY {by}")
            columns = [each[0] for each in cursor.description]
            marks = ",".join("?" * len(columns))
            for row in cursor:
                if not _verifies(damaged, table, dict(zip(columns, row, strict=True)), unsummed=unsummed):
                    wrong += 1
                    continue
                into = f"INSERT OR {verb} INTO {table} ({', '.join(columns)}) VALUES ({marks})"
                try:
                    if not db.execute(into, row).rowcount and order == "DESC":
                        break
                except (UnicodeError, sqlite3.IntegrityError):
                    wrong += 1
        except (sqlite3.Error, UnicodeError) as error:
            if order == "DESC":
                yield f"some cannot be read: {error}"
        else:
            break
    if unsummed and table == "meta":
        db.execute("INSERT OR IGNORE INTO meta (name, value) SELECT 'converted', value FROM meta WHERE name = 'clock'")
    if wrong:
        yield f"{wrong:,} do not verify"


def _verifies(damaged: sqlite3.Connection, table: str, row: dict[str, object], *, unsummed: bool) -> bool:
    if table == "destinations":
        return damaged.execute(IN_INDEX, (row["address"], row["id"])).fetchone() is not None
    if table not in COLUMNS or "sum" not in row:  # a former version has written it
        return True
    columns, of = COLUMNS[table]
    sum: Any = row.get("sum")
    return verifies(sum, of, [row[name] for name in columns.split(", ")], unsummed=unsummed)


def _is_converted(damaged: sqlite3.Connection) -> bool:
    """Return whether rows may have no checksum: a former version has written them."""
    try:
        if damaged.execute("PRAGMA user_version").fetchone()[0] == 1:
            return True
        return damaged.execute("SELECT 1 FROM meta WHERE name = 'converted'").fetchone() is not None
    except sqlite3.Error:
        return True
