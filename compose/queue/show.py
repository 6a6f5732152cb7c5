"""Tables of the outcome."""

from rich.console import Console
from rich.table import Table

from compose.queue.outcome import Outcome
from compose.tables import facts, laws, print_statuses, print_verdict


def show(outcome: Outcome, console: Console) -> None:
    """Print tables and, last, the verdict."""
    console.print(_workers(outcome))
    console.print(_faults(outcome))
    console.print(_deliveries(outcome))
    if outcome.audit:
        console.print(laws([outcome.audit]))
    scan = outcome.scan
    where = f"{scan.keys:,} keys, their dumps and {len(scan.files)} files of the AOF, {scan.bytes:,} bytes"
    console.print(f"Plaintext of values, results, errors and progress in {where}: {len(scan.found)}", highlight=False)
    print_statuses(outcome.ending, console)
    tasks = len(outcome.seen.tasks)
    success = f"{tasks} tasks ended once each, every result is right, every outcome came once"
    print_verdict(outcome.differences, success, console)


def _workers(outcome: Outcome) -> Table:
    table = facts("Who did what", "worker", "tasks done", "")
    for worker, many in sorted(outcome.by_worker.items()):
        was_killed = worker == outcome.seen.killed_worker
        table.add_row(worker, f"{many:,}", f"killed in task {outcome.seen.killed}" if was_killed else "")
    return table


def _faults(outcome: Outcome) -> Table:
    table = facts("What became of the tasks, and what was refused", "", "times", "")
    for state, many in sorted(outcome.states.items()):
        table.add_row(state, f"{many:,}")
    table.add_row("recovered", f"{len(outcome.recovered):,}", "its worker died, was slow, or left")
    table.add_row("retried", f"{len(outcome.retried):,}", "a worker failed in the first attempt")
    table.add_row("late acknowledgement", f"{outcome.late:,}", "409")
    for (what, status), many in sorted(outcome.seen.refused.items()):
        table.add_row(what, f"{many:,}", str(status))
    return table


def _deliveries(outcome: Outcome) -> Table:
    table = facts("How the outcomes came", "way", "outcomes", "")
    to_list, webhooks, polled = outcome.seen.delivered
    table.add_row("list", f"{to_list:,}", "without contents: they are sealed")
    table.add_row("webhook", f"{webhooks:,}", f"{outcome.seen.received.get('refused', 0)} refused at first, with 503")
    table.add_row("long poll", f"{polled:,}")
    return table
