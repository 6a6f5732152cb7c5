"""Command line of ``python -m bench peers``."""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.peers.catalog import PEERS
from bench.peers.page import figures, ranked, write
from bench.peers.results import Report, machine, ours_measured
from bench.peers.rounds import Notify, installed, measured, members, steps
from bench.peers.works import LIMIT, OURS, Peer, Work

HELP: Final = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(add_completion=False, context_settings=HELP)


@app.command()
def main(
    peer: Annotated[
        list[str] | None, typer.Option(help="Measure only this peer, the limit and Penstock; may be repeated.")
    ] = None,
    work: Annotated[list[Work] | None, typer.Option(help="Measure only this work; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times to measure each.")] = 5,
    json_file: Annotated[Path, typer.Option("--json", help="File to write the figures to.")] = Path("bench-peers.json"),
    page: Annotated[Path, typer.Option(help="Page to write after a complete run (no --peer, no --work).")] = Path(
        "docs/benchmarks.md"
    ),
) -> None:
    """Install the peers, measure the same work through each, write table and plots; exit 1 if Penstock did not run."""
    chosen, works = _chosen(peer or []), work or list(Work)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and peers are killed, too
    conditions = machine()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("peers", total=steps(chosen, works, rounds))
        notify = _progress_reporter(console, progress, task)
        found = installed(chosen, notify)
        rows = measured(chosen, works, found, rounds, notify)
    report = Report(conditions, rounds, members(chosen, found), rows)
    json_file.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    for each in works:
        Console(width=None if sys.stdout.isatty() else 160).print(_table(report, each))
    if not (peer or work):
        write(report, page)
        console.print(f"{page} and its plots are written")
    raise typer.Exit(0 if ours_measured(rows) else 1)


def _chosen(names: list[str]) -> list[Peer]:
    """Return the peers to measure. Raise ``BadParameter`` for a name that is not in the catalog."""
    known = {peer.name.lower(): peer for peer in PEERS}
    if unknown := [name for name in names if name.lower() not in known]:
        others = ", ".join(f"'{peer.name}'" for peer in PEERS)
        raise typer.BadParameter(f"there is no {unknown[0]!r}; there are {others}", param_hint="--peer")
    wanted = {LIMIT.lower(), OURS.lower(), *map(str.lower, names)} if names else set(known)
    return [peer for name, peer in known.items() if name in wanted]


def _progress_reporter(console: Console, progress: Progress, task: object) -> Notify:
    def notify(what: str, step: bool) -> None:
        if console.is_terminal:
            progress.update(task, description=what, advance=int(step))  # type: ignore[arg-type]
        else:
            console.print(what, highlight=False, soft_wrap=True)

    return notify


def _table(report: Report, work: Work) -> Table:
    table = Table("who", f"median, {work.unit}", "min - max", "/ limit", "/ Penstock", "messages", title=str(work))
    for row in ranked(report.of(work)):
        table.add_row(row.peer, *map(escape, figures(report, row)), f"{row.messages:,}")
    return table
