"""``penstock test``: runs a composition's own tests."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli._frame import Failed, Json, Misused, require_path, run
from penstock.cli._text import print_json, shown
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.testing.spec import Outcome, Trial


def trials(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Compositions, folders of them, or single test files.")
    ],
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tests that run at a time; as many as there are cores.")
    ] = None,
    filter: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only tests with this in their name or their file's.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report in JUnit's XML.")] = None,
    json: Json = False,
) -> None:
    """Run the tests of compositions.

    Each test of DIR/tests/*.yaml starts the composition's processes on embedded servers of their own, pushes messages,
    breaks what it says, and compares what comes out. Run it where the composition is run, as with up.
    """
    from penstock.composition.procfile import stoppable

    run(stoppable(_test(paths, jobs, filter, junit, json)))


async def _test(paths: list[Path], jobs: int | None, text: str | None, junit: Path | None, as_json: bool) -> int:
    chosen = _chosen(paths, text)
    from penstock.testing.spec.run import run as run_all

    with _progress(len(chosen)) as done:
        outcomes = await run_all(chosen, jobs or len(os.sched_getaffinity(0)), done)
    if junit:
        from penstock.testing.spec.junit import write

        write(outcomes, junit)
    if as_json:
        print_json(_as_json(outcomes))
    else:
        _tell(outcomes)
    return int(not all(outcome.holds for outcome in outcomes))


def _chosen(paths: list[Path], text: str | None) -> "list[Trial]":
    for path in paths:
        require_path(path)
    try:
        from penstock.testing.spec.files import find, read_all
    except ImportError as error:
        raise Failed(f"{error.name} is not installed: pip install 'penstock[test]'") from error
    try:
        found = read_all([file for path in paths for file in find(path)])
    except PenstockError as error:
        raise Misused(str(error)) from error
    chosen = [trial for trial in found if text is None or text.lower() in f"{trial.file} {trial.name}".lower()]
    if not chosen:
        raise Misused(f"none of {len(found)} tests has {text!r} in its name or its file's")
    return chosen


def _tell(outcomes: "Sequence[Outcome]") -> None:
    for outcome in outcomes:
        told = "ok    " if outcome.holds else "FAILED"
        typer.echo(
            shown(f"{told} {outcome.seconds:5.1f} s  {outcome.trial.where}: {outcome.trial.name}{_struck(outcome)}")
        )
    failed = [outcome for outcome in outcomes if not outcome.holds]
    for outcome in failed:
        typer.echo(
            "\n".join(["", shown(f"{outcome.trial.where}: {outcome.trial.name}"), *map(shown, outcome.report())])
        )
    typer.echo(f"\n{len(outcomes) - len(failed)} passed, {len(failed)} failed" if failed else f"{len(outcomes)} passed")


def _struck(outcome: "Outcome") -> str:
    """Return how much of a test with `every` was tried; nothing of another one."""
    if not outcome.strikes:
        return ""
    unmet = f", {len(outcome.unmet)} not met" if outcome.unmet else ""
    return f" ({outcome.strikes:,} faults at {outcome.points:,} points{unmet})"


def _as_json(outcomes: "Sequence[Outcome]") -> dict[str, object]:
    return {
        "tests": [
            {
                "composition": str(outcome.trial.directory),
                "file": str(outcome.trial.file),
                "line": outcome.trial.line,
                "name": outcome.trial.name,
                "holds": outcome.holds,
                "seconds": round(outcome.seconds, 3),
                "differences": outcome.differences,
                "faults": outcome.faults,
                "every": {"points": outcome.points, "faults": outcome.strikes, "unmet": outcome.unmet},
                "logs": outcome.logs,
            }
            for outcome in outcomes
        ],
        "holds": all(outcome.holds for outcome in outcomes),
    }


@contextmanager
def _progress(total: int) -> "Iterator[Callable[[Outcome], None]]":
    """Yields what hears of each outcome; a bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("tests"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        failed = 0

        def heard(outcome: "Outcome") -> None:
            nonlocal failed
            failed += not outcome.holds
            bar.update(task, advance=1, description=f"{failed} failed" if failed else "")

        yield heard
