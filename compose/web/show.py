"""Tables of the outcome."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from compose.tables import NUMBERS, conservation, laws, print_statuses, print_verdict
from compose.web.load import Step
from compose.web.outcome import Outcome
from penstock.accounting.audit import Audit
from penstock.accounting.tracked import TrackedAudit


def show(outcome: Outcome, console: Console) -> None:
    """Print tables and, last, the verdict."""
    console.print(_steps(outcome))
    for each in outcome.audits.values():
        if isinstance(each, Audit):
            console.print(conservation([each]))
    console.print(laws([each for each in outcome.audits.values() if isinstance(each, TrackedAudit)]))
    counts = outcome.counts
    delivered = f"{counts['timeout']:,} time-outs, {counts['retry']:,} requests given to another worker"
    console.print(f"mdispatch: {delivered}", highlight=False)
    kept, confirmed = outcome.kept.total(), outcome.confirmed.total()
    console.print(f"POSTs: {confirmed:,} confirmed, {kept:,} notes kept", highlight=False)
    for request in outcome.undone:
        console.print(f"not tried again: {request}", highlight=False, markup=False, soft_wrap=True)
    print_statuses(outcome.ending, console)
    requests = sum(step.asked for step in outcome.steps)
    success = f"{requests:,} requests, failed: 0. A worker, an importer and a router were killed under them"
    print_verdict(outcome.differences, success, console)


def _steps(outcome: Outcome) -> Table:
    """Return a column for each step, and one for all."""
    steps = [*outcome.steps, Step.sum(outcome.steps)]
    table = Table(title="What became of the requests", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for step in steps:
        table.add_column(step.name, justify="right", max_width=9, **NUMBERS)
    table.add_row("requests", *(f"{step.asked:,}" for step in steps))
    for status in sorted(steps[-1].statuses):
        table.add_row(f"answered {status}", *(f"{step.statuses[status]:,}" for step in steps))
    table.add_row("failed", *(f"{len(step.failed):,}" for step in steps))
    table.add_row("tried again", *(f"{step.again:,}" for step in steps))
    table.add_row("POSTs not done", *(f"{len(step.undone):,}" for step in steps))
    table.add_row("median (s)", *(f"{step.median:.3f}" for step in steps))
    table.add_row("slowest (s)", *(f"{step.slowest:.3f}" for step in steps))
    return table
