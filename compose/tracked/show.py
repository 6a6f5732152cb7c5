"""An outcome as a person reads it."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compose.tables import conservation, content, laws
from compose.tracked.counts import FIGURES, SPANS
from compose.tracked.outcome import Outcome


def show(outcome: Outcome, console: Console) -> None:
    """Print tables and, last, whether all is as promised."""
    console.print(_legs(outcome))
    passages = [passage for leg in outcome.legs for passage in leg.passages]
    console.print(content(passages, "in: what the readings themselves lead to", ordered=False))
    if outcome.audit:
        console.print(conservation(outcome.audit))
    if ledgers := [leg.ledger for leg in outcome.legs if leg.ledger]:
        console.print(laws(ledgers))
    statuses = ", ".join(f"{name} {status}" for name, status in outcome.statuses.items())
    console.print(Text(f"Exit status on SIGTERM: {statuses}"), soft_wrap=True)
    for difference in outcome.differences:
        console.print(Text(f"differs: {difference}", style="bold red"), soft_wrap=True)
    if not outcome.differences:
        console.print(Text("Nothing lost, nothing doubled: every message ended once, done or dead", style="green"))


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
