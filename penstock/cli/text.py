"""Names and numbers as people and programs read them."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.names import decoded, encoded


def shown(name: str | bytes) -> str:
    """A name as a terminal may have it: what is not printable is escaped, so that no name can play tricks."""
    text = encoded(name).decode(errors="backslashreplace") if isinstance(name, str) else shown(decoded(name))
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def age(seconds: float | None) -> str:
    """Roughly how long: the two largest units are enough."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    for unit, name, below in ((86400, "d", "h"), (3600, "h", "min"), (60, "min", "s")):
        if whole >= unit:
            parts = {"h": 3600, "min": 60, "s": 1}[below]
            return f"{whole // unit} {name} {whole % unit // parts} {below}"
    return f"{whole} s"


def clock(at: float | None, timespec: str = "seconds") -> str:
    """A time in seconds since the epoch; ``timespec`` as in ``datetime.isoformat``."""
    try:
        return "-" if at is None else datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(" ", timespec)
    except (ValueError, OverflowError, OSError):
        return f"{at:g}"


def print_json(value: Any) -> None:
    """One line of ASCII, so that a stream of them can be read line by line."""
    print(json.dumps(value), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Numbers to the right, all else to the left; as wide as it must be where no terminal sets a width."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kept = list(rows)
    table = Table()
    for place, column in enumerate(columns):
        numeric = bool(kept) and all(isinstance(row[place], int) for row in kept)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    console.print(Text(title, "bold"), table, sep="\n")
