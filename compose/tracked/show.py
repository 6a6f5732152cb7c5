"""Tables of the outcome."""

from rich.console import Console
from rich.table import Table

from compose.tables import conservation, content, laws, print_statuses, print_verdict
from compose.tracked.counts import FIGURES, SPANS
from compose.tracked.outcome import Outcome


def show(outcome: Outcome, console: Console) -> None:
    """Print tables and, last, whether all is as promised."""
    console.print(_legs(outcome))
    comparisons = [comparison for leg in outcome.legs for comparison in leg.comparisons]
    console.print(content(comparisons, "in: what the readings themselves lead to", ordered=False))
    if outcome.audit:
        console.print(conservation(outcome.audit))
    if ledgers := [leg.ledger for leg in outcome.legs if leg.ledger]:
        console.print(laws(ledgers))
    print_statuses(outcome.ending, console)
    success = "Nothing lost, nothing doubled: every message ended once, done or dead"
    print_verdict(outcome.differences, success, console)


def _legs(outcome: Outcome) -> Table:
    table = Table("", title="What happened on each leg", title_justify="left")
    for leg in outcome.legs:
        table.add_column(leg.name, justify="right")
    table.add_row("pushed", *(f"{outcome.pushed:,}" for _ in outcome.legs))
    for figure in FIGURES:
        table.add_row(figure, *(f"{leg.counts.numbers[figure]:,}" for leg in outcome.legs))
    table.add_section()
    for name in SPANS:
        spans = (leg.counts.seconds.get(name) for leg in outcome.legs)
        table.add_row(f"response time, {name} (s)", *("-" if span is None else f"{span:.3f}" for span in spans))
    return table
