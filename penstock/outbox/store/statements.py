"""Statements for one connection to the store.

Many rows go into one statement, as SQLite frees the interpreter's lock for each step: a thread that steps row by row
waits for the lock at each.
"""

import sqlite3
import time
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, Final

from penstock.outbox.errors import Damaged
from penstock.outbox.store.sums import COLUMNS, of_letter, of_meta, verifies

ROWS: Final = (256, 64, 16, 4, 1)
"""Rows that one statement inserts: each size is one prepared statement."""
STEP_ROWS: Final = 5000
"""Rows that are removed in one transaction where there may be very many."""


class Statements:
    """What the tables of a store have in common."""

    path: Path
    _db: sqlite3.Connection
    _opened: float
    _base: float
    """What the clock had when the store was opened, at ``_opened`` of ``time.monotonic``."""

    @property
    def clock(self) -> float:
        """Seconds that this store has been open, in all of its life; after a crash, the last ones may be missing."""
        return self._base + time.monotonic() - self._opened

    def _one(self, statement: str, *arguments: Any) -> Any:
        found = self._db.execute(statement, arguments).fetchone()
        return None if found is None else found[0]

    def _column(self, statement: str, *arguments: Any) -> list[Any]:
        return [value for (value,) in self._db.execute(statement, arguments).fetchall()]

    def verify(self, table: str, sum: int | None, *values: Any) -> None:
        """Raise ``Damaged`` unless ``sum`` of a row of ``table`` is that of its ``values``."""
        if not verifies(sum, COLUMNS[table][1], values, unsummed=False) and not (sum is None and self.is_converted):
            raise damaged(f"{self.path} is damaged: the checksum of a row of {table} ({values[0]!r}) is wrong")

    def bury(
        self, id: bytes, address: str, outgoing: int, keys: str | bytes, data: bytes, attempts: int, error: str
    ) -> None:
        """Add a dead letter."""
        row = (id, address, outgoing, keys, data, attempts, error)
        self._insert(
            "dead (id, address, outgoing, keys, data, attempts, error, sum, at)", [(*row, of_letter(*row), time.time())]
        )

    def put(self, name: str, value: object) -> None:
        """Write a row of ``meta``."""
        row = (name, value, of_meta(name, value))
        self._db.execute("INSERT OR REPLACE INTO meta (name, value, sum) VALUES (?, ?, ?)", row)

    def sum_meta(self) -> None:
        """Give all rows of ``meta`` their checksums."""
        for name, value in self._db.execute("SELECT name, value FROM meta").fetchall():
            self.put(name, value)

    @property
    def has_sums(self) -> bool:
        """Whether rows have checksums: a store of a former version that is only read has none."""
        return int(self._one("PRAGMA user_version")) > 1

    @cached_property
    def is_converted(self) -> bool:
        """Whether a former version has made the store: its rows have no checksum."""
        return not self.has_sums or self._one("SELECT 1 FROM meta WHERE name = 'converted'") is not None

    @property
    def converted_at(self) -> float:
        """What the clock had when the store was converted; far in the past if it was not."""
        found = self._one("SELECT value FROM meta WHERE name = 'converted'")
        return -inf if found is None else float(found)

    def _insert(self, into: str, rows: Sequence[Sequence[Any]], verb: str = "INSERT") -> int:
        """Return how many rows were inserted."""
        if len(rows) == 1:
            return self._db.execute(_insertion(verb, into, 1, len(rows[0])), rows[0]).rowcount
        start = inserted = 0
        while start < len(rows):
            count = next(size for size in ROWS if size <= len(rows) - start)
            values = list(chain.from_iterable(rows[start : start + count]))
            inserted += self._db.execute(_insertion(verb, into, count, len(rows[0])), values).rowcount
            start += count
        return inserted


def damaged(what: str) -> Damaged:
    """Return an error that says how to keep what is whole."""
    return Damaged(f"{what}: `penstock outbox salvage` copies what verifies, and says what does not")


@cache
def _insertion(verb: str, into: str, rows: int, columns: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"{verb} INTO {into} VALUES {','.join([row] * rows)}"


def among(seqs: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
    """Return a condition for the rising ``seqs`` that is one step of SQLite, with its arguments."""
    if seqs and seqs[-1] - seqs[0] + 1 == len(seqs):
        return "BETWEEN ? AND ?", (seqs[0], seqs[-1])
    return "IN (SELECT value FROM json_each(?))", (listed(seqs),)


def listed(numbers: Iterable[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
