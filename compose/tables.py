"""Tables and lines that the demos of several compositions print."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compose.comparison import Comparison
from compose.ending import Ending
from penstock.accounting.audit import Audit
from penstock.accounting.tracked import TrackedAudit

NUMBERS: Final[dict[str, Any]] = {"min_width": 5, "overflow": "fold"}
"""Options of a column of numbers: on a narrow terminal none is cut."""


def content(comparisons: Sequence[Comparison], caption: str, *, ordered: bool = True) -> Table:
    """Return a table of the messages sent and received, by list."""
    table = Table("list", title="By content", caption=caption, title_justify="left", caption_justify="left")
    for heading in ("in", "out", "lost", "doubled", "never sent", *(["in order"] if ordered else [])):
        table.add_column(heading, justify="right")
    for comparison in comparisons:
        order = ["yes" if comparison.in_order else "no"] if ordered else []
        table.add_row(comparison.name, *(f"{amount:,}" for amount in comparison.counts().values()), *order)
    return table


def conservation(audit: Audit) -> Table:
    """Return a table of a hop's counters, one row per list that it feeds."""
    title = f"Conservation: taken {'=' if audit.holds else 'is not'} delivered + dead + dropped + pending"
    table = Table(title=title, title_justify="left")
    table.add_column("list", overflow="fold")
    for heading in ("taken", "delivered", "dead", "dropped", "pending", "missing"):
        table.add_column(heading, justify="right", **NUMBERS)
    for branch in audit.legs:
        amounts = (branch.taken, branch.delivered, branch.dead, branch.dropped, branch.pending, branch.difference)
        table.add_row(branch.name, *(f"{amount:,}" for amount in amounts))
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


def facts(title: str, *headings: str, numbers: Collection[int] = (1,)) -> Table:
    """Return an empty table; the columns at the places ``numbers`` are for numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in numbers else "left")
    return table


def print_statuses(ending: Ending, console: Console) -> None:
    statuses = ", ".join(f"{name} {status}" for name, status in ending.statuses.items())
    console.print(Text(f"Exit status on SIGTERM: {statuses}"), soft_wrap=True)


def print_verdict(differences: Sequence[str], success: str, console: Console) -> None:
    """Print each of ``differences``, or ``success`` if there is none."""
    for difference in differences:
        console.print(Text(f"differs: {difference}", style="bold red"), soft_wrap=True)
    if not differences:
        console.print(Text(success, style="green"), soft_wrap=True)
