"""Tables of the outcome."""

from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.table import Table

from compose.edge.outcome import Outcome, Result
from compose.tables import print_statuses, print_verdict

ROWS: Final[dict[str, Callable[[Result], str]]] = {
    "sent to it": lambda site: f"{site.comparison.sent:,}",
    "arrived": lambda site: f"{site.comparison.got:,}",
    "lost": lambda site: f"{site.comparison.lost.total():,}",
    "doubled": lambda site: f"{site.comparison.doubled.total():,}",
    "dead": lambda site: f"{site.dead:,}",
}
FAULTS: Final[dict[str, Callable[[Result], str]]] = {
    "off the net (s)": lambda site: f"{site.off_net:.1f}" if site.off_net else "-",
    "waited for it meanwhile": lambda site: f"{site.waited:,}" if site.off_net else "-",
    "in hand when it was killed": lambda site: f"{site.killed_with:,}" if site.killed_with else "-",
    "came again, and was dropped": lambda site: f"{site.again:,}",
}


def show(outcome: Outcome, console: Console) -> None:
    """Print the tables and, last, the verdict."""
    table = Table("", title="What the two others sent to each site", title_justify="left")
    for site in outcome.results:
        table.add_column(site.name, justify="right")
    for rows in (ROWS, FAULTS):
        for name, cell in rows.items():
            table.add_row(name, *map(cell, outcome.results))
        table.add_section()
    console.print(table)
    print_statuses(outcome.endings[0], console)
    print_verdict(outcome.differences, "Nothing lost, nothing doubled, nothing dead at any site", console)
