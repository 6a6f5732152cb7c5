"""``penstock chaos``: inject faults into a composition and report what was lost, doubled or reordered."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.encoding import counted
from penstock.base.errors import PenstockError
from penstock.cli._frame import Json, Misused, complain, require_path, run
from penstock.cli._text import print_json, print_table, shown

if TYPE_CHECKING:
    from penstock.testing.chaos.plan import Chosen
    from penstock.testing.chaos.run import Report


def chaos(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The composition.")],
    fault: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Only faults whose name contains TEXT; can be repeated.")
    ] = None,
    service: Annotated[str | None, typer.Option(metavar="NAME", help="Only faults in this process.")] = None,
    point: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only injection points whose name contains TEXT, e.g. 'mpush flow: EXEC'."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of the random faults; default: a random one.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=0, metavar="N", help="How often to inject each random fault.")] = 1,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Inject only N of these faults, drawn by the seed.")
    ] = None,
    stages: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Run N sandboxes in parallel; default: four for each core.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML report.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page with a plot.")] = None,
    json: Json = False,
) -> None:
    """Inject faults into a composition and check its guarantees.

    Its processes run on embedded servers behind a proxy. Every command that a process sends (at its start, in its flow,
    at its stop) is an injection point: the connection is cut before the command and before its reply, and the process
    is killed there. One run without a fault has a thousand messages. Then random faults follow: server restart, SCRIPT
    FLUSH, CLIENT PAUSE, maxmemory, slow link, lost packet, wrong type, SIGTERM, two at once. Exit status 1 if a
    guarantee is broken.
    """
    from penstock.composition.procfile import stoppable
    from penstock.testing.chaos.plan import Chosen

    drawn = random.SystemRandom().randrange(2**31) if seed is None else seed
    chosen = Chosen(drawn, tuple(fault or ()), service, point, rounds, stages, sample)
    run(stoppable(_chaos(directory, chosen, junit, html, json)))


async def _chaos(directory: Path, chosen: "Chosen", junit: Path | None, html: Path | None, as_json: bool) -> int:
    from penstock.composition.files import read_sound
    from penstock.testing.chaos import report as reports
    from penstock.testing.chaos.run import Run

    require_path(directory)
    composition = read_sound(directory)
    try:
        chosen.check(composition)
    except PenstockError as error:
        raise Misused(str(error)) from None
    _note(f"seed {chosen.seed}")
    with _progress() as tell:
        report = await Run(composition, chosen, tell, _note).report()
    name = str(directory)
    if junit:
        reports.write_junit(report, name, junit)
    if html:
        _write(html, reports.page(report, name))
    if as_json:
        print_json(reports.as_json(report, name))
    else:
        _print(report, name)
    return int(not report.holds)


def _note(line: str) -> None:
    complain(line, 0)


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def _print(report: "Report", name: str) -> None:
    from penstock.testing.chaos import report as reports

    faults, points = counted(len(report.results), "fault"), counted(len(report.points), "point")
    title = f"{shown(name)}: {faults}, {points}, {report.seconds:.0f} s"
    rows = [[*row[:-1], f"{row[-1]:.2f} s"] for row in reports.rows(report)]
    print_table(title, reports.COLUMNS, rows)
    for result in reports.findings(report):
        complain(f"{reports.summary(result)}\n  again: {reports.rerun(result, name, report.seed)}", 1)
    for line in report.books:
        complain(f"the ledger does not agree: {line}", 1)
    unmet = sum(not result.met for result in report.results)
    if unmet:
        typer.echo(f"{unmet} not met: the command did not come again")
    typer.echo(reports.verdict(report))


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that takes the faults done, their total and the last one; show a bar only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    times = TimeElapsedColumn(), TimeRemainingColumn()
    columns = BarColumn(), MofNCompleteColumn(), *times, TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("recording what each process asks for", total=None)
        yield lambda done, total, last: bar.update(
            task, completed=done, total=total, description=escape(shown(last)[:60])
        )
