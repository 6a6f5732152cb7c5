"""Formatting of names, times, tables and JSON."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.base.encoding import decoded, encoded
from penstock.base.exact_json import as_json, has_number

if TYPE_CHECKING:
    from rich.table import Table


def shown(name: str | bytes) -> str:
    """Return a name for a terminal; non-printable characters are escaped, so that no name can control it."""
    text = encoded(name).decode(errors="backslashreplace") if isinstance(name, str) else shown(decoded(name))
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def age(seconds: float | None) -> str:
    """Return a duration in its two largest units; ``-`` for None."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    for unit, name, below in ((86400, "d", "h"), (3600, "h", "min"), (60, "min", "s")):
        if whole >= unit:
            parts = {"h": 3600, "min": 60, "s": 1}[below]
            return f"{whole // unit} {name} {whole % unit // parts} {below}"
    return f"{whole} s"


def clock(at: float | None, timespec: str = "seconds") -> str:
    """Return the time ``at`` (s since the epoch) in UTC; ``timespec`` as in ``datetime.isoformat``."""
    try:
        return "-" if at is None else datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(" ", timespec)
    except (ValueError, OverflowError, OSError):
        return f"{at:g}"


def print_json(value: Any) -> None:
    """Print ``value`` as one line of ASCII, so that a stream of them can be read line by line."""
    print(as_json(value).decode() if has_number(value) else json.dumps(value), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, numbers to the right, as wide as it must be unless a terminal sets the width.

    If a word would have to break to fit the terminal, print one block a row instead: each column on a line of its own.
    """
    from rich.console import Console
    from rich.text import Text

    rows = list(rows)
    texts = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    table = _table(columns, rows, texts)
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    console.print(Text(title, "bold"))
    if _narrowest(columns, texts) <= console.width:
        console.print(table)
        return
    for row in texts:
        console.print(_block(columns, row))


def _narrowest(columns: Sequence[str], texts: Sequence[Sequence[str]]) -> int:
    """Return the width in letters below which the table would break a word; each column has a border and two spaces."""
    from rich.cells import cell_len

    cells = zip(columns, *texts, strict=True)
    return 1 + sum(3 + max(cell_len(word) for cell in column for word in [*cell.split(), ""]) for column in cells)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], texts: Sequence[Sequence[str]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for place, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[place], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in texts:
        table.add_row(*map(Text, row))
    return table


def _block(columns: Sequence[str], row: Sequence[str]) -> "Table":
    """Return the row as a grid: the name of the first column and its cell as a heading, the others indented."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(overflow="fold")
    for place, (column, cell) in enumerate(zip(columns, row, strict=True)):
        grid.add_row(Text(column if place == 0 else f"  {column}"), Text(cell, "" if place else "bold"))
    return grid
