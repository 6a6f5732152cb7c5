"""Tables of the outcome."""

from rich.console import Console
from rich.table import Table

from compose.jobs.names import GROUPS, MONTHS, SNOW, STATISTICS, TALLY
from compose.jobs.outcome import Outcome
from compose.tables import facts, laws, print_statuses, print_verdict


def show(outcome: Outcome, console: Console) -> None:
    """Print tables and, last, the verdict."""
    console.print(_workers(outcome))
    console.print(_jobs(outcome))
    if outcome.audit:
        console.print(laws([outcome.audit]))
    print_statuses(outcome.ending, console)
    many = len(outcome.seen.months) + 1
    success = f"{many} jobs ended once for each of 2 groups, every result is right"
    print_verdict(outcome.differences, success, console)


def _workers(outcome: Outcome) -> Table:
    table = facts("Who did what", "group", "worker", "months done", "", numbers=(2,))
    for group, counts in outcome.by_worker.items():
        for worker, many in sorted(counts.items()):
            table.add_row(group, worker, f"{many:,}", outcome.seen.snow if group == SNOW else "")
    if outcome.seen.has_killed:
        table.add_row(STATISTICS, outcome.seen.killed_worker, "0", f"killed in the job of {outcome.seen.killed}")
    return table


def _jobs(outcome: Outcome) -> Table:
    table = facts("What became of the jobs", "", *GROUPS, "", numbers=(1, 2))
    retried, claimed = (sum(id.startswith(f"{MONTHS} ") for id in ids) for ids in (outcome.retried, outcome.claimed))
    dead = [sum(each.group == group for each in outcome.dead) for group in GROUPS]
    table.add_row("done", *(f"{len(outcome.done[group]):,}" for group in GROUPS))
    table.add_row("retried", f"{retried:,}", "", "a hot month fails in its first attempt")
    table.add_row("claimed", f"{claimed:,}", "", "a process was killed that had it")
    table.add_row("dead", *(f"{many:,}" for many in dead), "no rows, in 3 attempts")
    table.add_row(TALLY, f"{len(outcome.tallies):,}", "", "a job that is repeated every second")
    return table
