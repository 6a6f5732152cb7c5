"""Tables that the demos of several compositions print."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from compose.comparison import Comparison
from penstock.accounting.audit import Audit
from penstock.accounting.tracked import TrackedAudit

NUMBERS: Final[dict[str, Any]] = {"min_width": 5, "overflow": "fold"}
"""Options of a column of numbers: on a narrow terminal none is cut."""
Cell = str | int | bool | None
Column = Sequence[Mapping[str, Cell]]
"""The cells of a column by row; a line is drawn after each of the mappings."""


def content(comparisons: Sequence[Comparison], caption: str) -> Table:
    """Return a table of the messages sent and received, by list; with their order, if it counts anywhere."""
    ordered = ["in order"] if any(each.ordered for each in comparisons) else []
    headings = ("list", "in", "out", "lost", "doubled", "never sent", *ordered)
    rows: list[list[Cell]] = [
        [each.name, *each.counts().values(), *[each.in_order] * len(ordered)] for each in comparisons
    ]
    return listing("By content", headings, rows, numbers=range(1, 7), caption=caption, borders=True)


def conservation(audits: Sequence[Audit]) -> Table:
    """Return a table of the counters of one or more hops, one row per list that they feed."""
    holds = all(each.holds for each in audits)
    table = Table(
        title=f"Conservation: taken {'=' if holds else 'is not'} delivered + dead + dropped + pending",
        title_justify="left",
    )
    table.add_column("list", overflow="fold")
    for heading in ("taken", "delivered", "dead", "dropped", "pending", "missing"):
        table.add_column(heading, justify="right", **NUMBERS)
    for each in (output for audit in audits for output in audit.legs):
        amounts = (each.taken, each.delivered, each.dead, each.dropped, each.pending, each.difference)
        table.add_row(each.name, *map(_text, amounts))
    return table


def laws(ledgers: Sequence[TrackedAudit]) -> Table:
    """Return a table of the sums of tracked namespaces, side by side."""
    holds = all(ledger.holds for ledger in ledgers)
    title = f"Conservation: each step {'is' if holds else 'should be'} the sum of those below it"
    table = Table("step", title=title, title_justify="left")
    for ledger in ledgers:
        table.add_column(ledger.namespace, justify="right")
    for same in zip(*(ledger.laws for ledger in ledgers), strict=True):
        table.add_row(same[0].whole, *(f"{law.count:,}" for law in same))
        for part in same[0].parts:
            table.add_row(f"  {part}", *(f"{law.parts[part]:,}" for law in same))
        table.add_section()
    return table


def accounts(audits: Iterable[Audit | TrackedAudit | None]) -> list[Table]:
    """Return the tables of all that was counted: hop by hop, then what is tracked, side by side."""
    known = [each for each in audits if each]
    ledgers = [each for each in known if isinstance(each, TrackedAudit)]
    return [conservation([each]) for each in known if isinstance(each, Audit)] + ([laws(ledgers)] if ledgers else [])


def side_by_side(
    title: str, columns: Iterable[tuple[str, Column]], caption: str | None = None, *, narrow: bool = False
) -> Table:
    """Return a table with a column of numbers for each of several things that are compared row by row."""
    named = [*columns]
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    options: dict[str, Any] = {"max_width": 9, **NUMBERS} if narrow else {}
    if narrow:
        table.box, table.pad_edge = SIMPLE_HEAD, False
    table.add_column("", no_wrap=narrow)
    for name, _ in named:
        table.add_column(name, justify="right", **options)
    for sections in zip(*(column for _, column in named), strict=True):
        for row in sections[0]:
            table.add_row(row, *(_text(section[row]) for section in sections))
        table.add_section()
    return table


def listing(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    numbers: Collection[int] = (1,),
    caption: str | None = None,
    borders: bool = False,
) -> Table:
    """Return a table; the columns at the places ``numbers`` are for numbers."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    if not borders:
        table.box, table.pad_edge = SIMPLE_HEAD, False
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in numbers else "left")
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(cell: Cell) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "-" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell
