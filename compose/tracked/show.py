"""Tables of the outcome."""

from rich.console import Console
from rich.table import Table

from compose.tables import conservation, content, laws, print_statuses, print_verdict
from compose.tracked.counts import FIGURES, SPANS
from compose.tracked.outcome import Outcome


def show(outcome: Outcome, console: Console) -> None:
    """Print tables and, last, the verdict."""
    console.print(_branch_table(outcome))
    comparisons = [comparison for branch in outcome.branches for comparison in branch.comparisons]
    console.print(content(comparisons, "in: what the readings themselves lead to", ordered=False))
    if outcome.audit:
        console.print(conservation(outcome.audit))
    if ledgers := [branch.ledger for branch in outcome.branches if branch.ledger]:
        console.print(laws(ledgers))
    print_statuses(outcome.ending, console)
    success = "Nothing lost, nothing doubled: every message ended once, done or dead"
    print_verdict(outcome.differences, success, console)


def _branch_table(outcome: Outcome) -> Table:
    table = Table("", title="What happened on each branch", title_justify="left")
    for branch in outcome.branches:
        table.add_column(branch.name, justify="right")
    table.add_row("pushed", *(f"{outcome.pushed:,}" for _ in outcome.branches))
    for figure in FIGURES:
        table.add_row(figure, *(f"{branch.counts.numbers[figure]:,}" for branch in outcome.branches))
    table.add_section()
    for name in SPANS:
        spans = (branch.counts.seconds.get(name) for branch in outcome.branches)
        table.add_row(f"response time, {name} (s)", *("-" if span is None else f"{span:.3f}" for span in spans))
    return table
