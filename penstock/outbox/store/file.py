"""Opens the file of a store: checks, transactions, clock and identity."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final, Self

from penstock.outbox.errors import Damaged, DiskFull
from penstock.outbox.lock import owner_of
from penstock.outbox.schema import BODIES, CONVERSIONS, OUTGOING, SCHEMA, SHAPE, SUMMED, VERSION
from penstock.outbox.store import log
from penstock.outbox.store.people import ForPeople
from penstock.outbox.store.statements import damaged
from penstock.outbox.store.sums import COLUMNS, verifies

NAME: Final = "outbox.db"
CHECKED_BYTES: Final = 64 * 1024 * 1024
"""A store up to this size is checked as a whole when it is opened; of a larger one, only the tables without bodies."""
SMALL_TABLES: Final = (
    "meta", "destinations", "subscriptions", "subscribed", "deliveries", "shared", "begun", "tries", "spools",
)  # fmt: skip
OURS: Final = (
    "SELECT coalesce(sum(length(data)), 0) + 60 * count(*) FROM messages",
    "SELECT 20 * count(*) FROM deliveries",
    "SELECT coalesce(sum(length(data)), 0) + 20 * count(*) FROM spooled",
)
THEIRS: Final = (
    "SELECT coalesce(sum(length(data) + length(keys)), 0) + 60 * count(*) FROM incoming",
    "SELECT coalesce(sum(length(data) + length(keys)), 0) + 60 * count(*) FROM dead",
    "SELECT 30 * count(*) FROM seen",
    "SELECT coalesce(sum(length(key) + length(address)), 0) FROM subscriptions",
)
"""Bytes of the tables that the program fills, and of those that peers do."""
IDENTITY_BYTES: Final = 16
MAKING_SECONDS: Final = 5.0
"""How long a reader waits for the owner that creates the store."""
LOOK_SECONDS: Final = 1.0
"""Between two looks at whether the file is still in its directory, as transactions begin."""
UNREADABLE: Final = ("SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG")
"""Errors of statements that any store of ours can execute."""
CACHE_KIB: Final = 16 * 1024
CHECKPOINT_PAGES: Final = 1000
LOG_BYTES: Final = 64 * 1024 * 1024
"""To which the write-ahead log is cut after a transaction that made it larger."""


class Store(ForPeople):
    """A connection to the store in ``datadir``. Use ``open`` or ``read``."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._db = path, connection
        self._db.execute("PRAGMA temp_store=MEMORY")  # a container may have no directory for temporary files
        self._opened, self._base = time.monotonic(), 0.0
        self._looked, self._inode = self._opened, path.stat().st_ino
        self._checkpoints = True

    @classmethod
    def open(cls, datadir: Path, *, has_log: bool = False) -> Self:
        """Open the store to write, and make it if it does not exist; the caller holds the ``Lock``.

        ``has_log``: its last owner ended without closing it. Raise ``Damaged`` if it cannot be used, ``DiskFull`` if it
        cannot be made.
        """
        path = datadir / NAME
        log.check(path, expected=has_log)
        with _opening_errors(path):
            log.sync(path)
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=200)
            try:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=FULL")
                db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
                db.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
                db.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
                found = cls(path, db)
                found._prepare()
            except BaseException:
                db.close()
                raise
        return found

    @classmethod
    def read(cls, datadir: Path) -> Self:
        """Open the store to read, also while its owner lives; wait while it is being created.

        Raise ``FileNotFoundError`` or ``Damaged``.
        """
        path = datadir / NAME
        path.stat()
        with _opening_errors(path):
            try:
                return cls._reading(path, "mode=ro")
            except sqlite3.OperationalError as error:
                log = path.with_name(path.name + "-wal")
                if log.exists() and log.stat().st_size:
                    elsewhere = f"on a disk that is read-only, copy it with {log.name} elsewhere, and look there"
                    raise Damaged(f"{path} cannot be read: {error} ({elsewhere})") from error
                return cls._reading(path, "mode=ro&immutable=1")  # a disk that nobody can write

    @classmethod
    def _reading(cls, path: Path, options: str) -> Self:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, isolation_level=None)
        try:
            found = cls(path, db)
            until = time.monotonic() + MAKING_SECONDS
            while not found._one("SELECT count(*) FROM sqlite_master") and owner_of(path.parent):
                if time.monotonic() > until:
                    raise Damaged(f"{path} is empty: its owner is creating it")
                time.sleep(0.01)
            found._require_version(found._version(), 1)
            found._read_meta()
        except BaseException:
            db.close()
            raise
        return found

    def begin_log(self) -> bool:
        """Have something in the log, as long as the store is open; return whether it has, which a full disk denies."""
        with suppress(DiskFull), self.transaction():
            self.save_clock()
        return log.log_of(self.path).stat().st_size > 0

    def beside(self) -> "Store":
        """Return a second connection, to read while this one writes in another thread."""
        other = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=200)
        other.execute("PRAGMA query_only=1")
        store = Store(self.path, other)
        store._opened, store._base = self._opened, self._base
        return store

    @property
    def connection(self) -> sqlite3.Connection:
        """For statements about tables of other modules: ``spool``."""
        return self._db

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end, or roll back if the block raises. Raise ``DiskFull`` if it cannot be written."""
        self.begin_transaction()
        try:
            with translated_errors(self.path):
                yield
            self.commit()
        except BaseException:
            self.roll_back()
            raise

    def translated(self) -> AbstractContextManager[None]:
        """Raise what SQLite reports in the block as our errors."""
        return translated_errors(self.path)

    def begin_transaction(self) -> None:
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self.require_file()
            self._looked = time.monotonic()
        with translated_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")

    def require_file(self) -> None:
        """Raise ``Damaged`` if the file was deleted or replaced while it is open: what is written is lost."""
        try:
            is_there = self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise Damaged(f"{self.path} was deleted or replaced while it is open: what is stored is lost at the end")

    def commit(self) -> None:
        """Return once all statements since ``begin_transaction`` are on disk. Raise ``DiskFull``, rolled back."""
        try:
            with translated_errors(self.path):
                self._db.execute("COMMIT")
        except BaseException:
            self.roll_back()
            raise

    def checkpoints(self, wanted: bool) -> None:
        """Let commits copy the log into the file once it has ``CHECKPOINT_PAGES``, or let it grow."""
        if wanted != self._checkpoints:
            self._checkpoints = wanted
            self._db.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES if wanted else 0}")

    def roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    # ---- clock and identity

    def save_clock(self) -> None:
        self.put("clock", self.clock)

    @property
    def identity(self) -> bytes:
        """16 random bytes, chosen when the store was made."""
        return bytes(self._one("SELECT value FROM meta WHERE name = 'identity'"))

    @property
    def peers_bound(self) -> int | None:
        """How many bytes peers may have, as the owner has noted; None if none has."""
        found = self._one("SELECT value FROM meta WHERE name = 'store_bytes'")
        return None if found is None else int(found)

    def note_peers_bound(self, bytes: int) -> None:
        self.put("store_bytes", bytes)

    def _prepare(self) -> None:
        version = self._version()
        if version == 0 and not self._one("SELECT count(*) FROM sqlite_master"):
            with self.transaction():
                for statement in SCHEMA:
                    self._db.execute(statement)
                self.put("identity", os.urandom(IDENTITY_BYTES))
                self.put("clock", 0.0)
                self._db.execute(f"PRAGMA user_version={VERSION}")
        elif 0 < version < VERSION:
            with self.transaction():
                for statement in chain.from_iterable(CONVERSIONS[version - 1 :]):
                    self._db.execute(statement)
                self.sum_meta()
                self._db.execute(f"PRAGMA user_version={VERSION}")
                self._check()
        else:
            self._require_version(version)
            self._check()
        self._read_meta()
        if self._one("SELECT 1 FROM begun LIMIT 1"):  # on a full disk, an outbox opens to deliver what it has
            with self.transaction():
                self._suspect_begun()

    def _version(self) -> int:
        return int(self._one("PRAGMA user_version"))

    def _require_version(self, version: int, least: int = VERSION) -> None:
        if not least <= version <= VERSION:
            which = "was written by a newer version" if version > VERSION else "is no store of an outbox"
            raise Damaged(f"{self.path} {which} (schema {version}, expected {VERSION})")

    def _read_meta(self) -> None:
        """Set the clock. Raise ``TypeError`` or ``ValueError`` if ``meta`` lacks it, or the identity."""
        self._base = float(self._one("SELECT value FROM meta WHERE name = 'clock'"))
        if len(self.identity) != IDENTITY_BYTES:
            raise ValueError("the identity is not whole")

    def _check(self) -> None:
        if missing := _shape() - set(self._db.execute(SHAPE)):
            raise damaged(f"{self.path} is damaged: the schema lacks {min(map(str, missing))}")
        whole = self.path.stat().st_size <= CHECKED_BYTES
        for table in ("",) if whole else SMALL_TABLES:
            found = self._one(f"PRAGMA integrity_check({table or 1})")  # compares tables with their indexes, too
            if found != "ok":
                raise damaged(f"{self.path} is damaged: {found}")
        summed = COLUMNS if whole else ("meta",)
        if wrong := [f"{count:,} of {table}" for table in summed if (count := self._wrong(table))]:
            raise damaged(f"{self.path} is damaged: the checksums of rows are wrong, {' and '.join(wrong)}")
        for table, which, what in (*OUTGOING, *BODIES) if whole else OUTGOING:
            if count := self._one(f"SELECT count(*) FROM {table} WHERE {which}"):
                raise damaged(f"{self.path} is damaged: {count:,} of {table} {what}")

    def _wrong(self, table: str) -> int:
        """Return how many rows of ``table`` do not verify."""
        columns, of = COLUMNS[table]
        unsummed = table in SUMMED and self.is_converted
        rows = self._db.execute(f"SELECT sum, {columns} FROM {table}")
        return sum(not verifies(found, of, values, unsummed=unsummed) for found, *values in rows)

    @property
    def size(self) -> int:
        """Bytes in use, without the pages that are free to be used again."""
        pages = self._one("PRAGMA page_count") - self._one("PRAGMA freelist_count")
        return int(pages * self._one("PRAGMA page_size"))

    def size_of_peers(self) -> int:
        """Bytes in use for what peers have sent, about. Reads most of the file: in a thread, and rarely."""
        ours, theirs = (sum(map(self._one, statements)) for statements in (OURS, THEIRS))
        return int(self.size * theirs / (ours + theirs or 1))

    def compact(self) -> None:
        """Give the space of removed messages back to the disk; it needs as much as what is left meanwhile, there."""
        beside = str(self.path.parent).replace("'", "''")
        with translated_errors(self.path):
            self._db.execute("PRAGMA temp_store=FILE")
            self._db.execute(f"PRAGMA temp_store_directory='{beside}'")
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise what SQLite reports as our errors."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")):
            raise DiskFull(f"{path} cannot be written: {error} ({name})") from error
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise damaged(f"{path} is damaged: {error} ({name})") from error
        if "decode to UTF-8" in str(error):
            raise damaged(f"{path} is damaged: {error}") from error
        raise


@contextmanager
def _opening_errors(path: Path) -> Iterator[None]:
    """As ``translated_errors``; what cannot be understood is damaged, too."""
    try:
        with translated_errors(path):
            yield
    except (sqlite3.Error, TypeError, ValueError) as error:
        if getattr(error, "sqlite_errorname", "SQLITE_ERROR").startswith(UNREADABLE):
            raise damaged(f"{path} is damaged: {error}") from error
        raise


@cache
def _shape() -> frozenset[tuple[object, ...]]:
    """Return the columns and indexes of a store."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(";".join(SCHEMA))
        return frozenset(db.execute(SHAPE))
