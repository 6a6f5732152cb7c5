"""Statements for one connection to the store.

Many rows go into one statement, as SQLite frees the interpreter's lock for each step: a thread that steps row by row
waits for the lock at each.
"""

import sqlite3
import time
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

ROWS: Final = (256, 64, 16, 4, 1)
"""Rows that one statement inserts: each size is one prepared statement."""
STEP_ROWS: Final = 5000
"""Rows that are removed in one transaction where there may be very many."""


class Statements:
    """What the tables of a store have in common."""

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
