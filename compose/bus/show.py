"""Tables of the outcome."""

from rich.console import Console
from rich.table import Table

from compose.bus.outcome import Month, Outcome
from compose.tables import content, print_statuses, print_verdict

WIDTH = 36
"""Letters of the scale."""
COLDEST, WARMEST = 20.0, 100.0
"""Ends of the scale (F)."""


def show(outcome: Outcome, console: Console) -> None:
    """Print tables and, last, the verdict."""
    console.print(_months(outcome.months))
    console.print(content([outcome.readings, outcome.days], "daily means: at site two, through the gateway"))
    rate = outcome.readings.got / max(outcome.seconds, 1e-6)
    console.print(f"Producer: {outcome.producer}; paused {outcome.pauses} times; {rate:,.0f} readings a second")
    print_statuses(outcome.ending, console)
    print_verdict(outcome.differences, "Every reading was handled once and in order; every day is at site two", console)


def _months(months: dict[str, Month]) -> Table:
    table = Table("month", title="What the service answered (F)", title_justify="left")
    for heading in ("hours", "mean", "least", "most"):
        table.add_column(heading, justify="right")
    table.add_column(f"{COLDEST:.0f}{WARMEST:>{WIDTH - 2}.0f}")
    for month, found in months.items():
        cells = (f"{found['hours']:.0f}", *(f"{found[name]:.1f}" for name in ("mean", "least", "most")))
        table.add_row(month, *cells, _bar(found))
    return table


def _bar(found: Month) -> str:
    """Draw the range of a month, and its mean."""
    least, mean, most = (_place(found[name]) for name in ("least", "mean", "most"))
    line = [" "] * WIDTH
    line[least : most + 1] = "─" * (most + 1 - least)
    line[mean] = "●"
    return "".join(line)


def _place(degrees: float) -> int:
    share = (degrees - COLDEST) / (WARMEST - COLDEST)
    return min(max(round(share * (WIDTH - 1)), 0), WIDTH - 1)
