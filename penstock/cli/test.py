"""``penstock test``: run the tests of compositions."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.encoding import counted
from penstock.base.errors import PenstockError
from penstock.cli._frame import Json, Misused, require_path, run
from penstock.cli._text import print_json, shown

if TYPE_CHECKING:
    from penstock.testing.spec import Case, CaseResult


def run_tests(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Compositions, folders of compositions, or test files.")
    ],
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Run N tests at a time; default: one for each core.")
    ] = None,
    filter: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only tests whose name or file name contains TEXT.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML report.")] = None,
    json: Json = False,
) -> None:
    """Run the tests of compositions.

    Each test in DIR/tests/*.yaml starts the processes of the composition on embedded servers of its own, pushes
    messages, injects faults and compares the output. Run it in the folder in which you run the composition.
    """
    from penstock.composition.procfile import stoppable

    run(stoppable(_test(paths, jobs, filter, junit, json)))


async def _test(paths: list[Path], jobs: int | None, text: str | None, junit: Path | None, as_json: bool) -> int:
    chosen = _chosen(paths, text)
    from penstock.testing.spec.run import run as run_all

    with _progress(len(chosen)) as done:
        results = await run_all(chosen, jobs or len(os.sched_getaffinity(0)), done)
    if junit:
        from penstock.testing.spec.junit import write

        write(results, junit)
    if as_json:
        print_json(_as_json(results))
    else:
        _print_outcomes(results)
    return int(not all(result.holds for result in results))


def _chosen(paths: list[Path], text: str | None) -> "list[Case]":
    for path in paths:
        require_path(path)
    from penstock.testing.spec.files import find, read_all

    try:
        found = read_all([file for path in paths for file in find(path)])
    except PenstockError as error:
        raise Misused(str(error)) from error
    chosen = [case for case in found if text is None or text.lower() in f"{case.file} {case.name}".lower()]
    if not chosen:
        raise Misused(f"no name or file name of {len(found)} tests contains {text!r}")
    return chosen


def _print_outcomes(results: "Sequence[CaseResult]") -> None:
    for result in results:
        state = "ok    " if result.holds else "FAILED"
        typer.echo(
            shown(f"{state} {result.seconds:5.1f} s  {result.case.where}: {result.case.name}{_fault_counts(result)}")
        )
    failed = [result for result in results if not result.holds]
    for result in failed:
        typer.echo("\n".join(["", shown(f"{result.case.where}: {result.case.name}"), *map(shown, result.report())]))
    typer.echo(f"\n{len(results) - len(failed)} passed, {len(failed)} failed" if failed else f"{len(results)} passed")


def _fault_counts(result: "CaseResult") -> str:
    """Return how much of a test with `every` was tried; nothing of another one."""
    if not result.injections:
        return ""
    unmet = f", {len(result.unmet)} not met" if result.unmet else ""
    return f" ({counted(result.injections, 'fault')} at {counted(result.points, 'point')}{unmet})"


def _as_json(results: "Sequence[CaseResult]") -> dict[str, object]:
    return {
        "tests": [
            {
                "composition": str(result.case.directory),
                "file": str(result.case.file),
                "line": result.case.line,
                "name": result.case.name,
                "holds": result.holds,
                "seconds": round(result.seconds, 3),
                "differences": result.differences,
                "faults": result.faults,
                "every": {"points": result.points, "faults": result.injections, "unmet": result.unmet},
                "logs": result.logs,
            }
            for result in results
        ],
        "holds": all(result.holds for result in results),
    }


@contextmanager
def _progress(total: int) -> "Iterator[Callable[[CaseResult], None]]":
    """Yield a function that takes each result; show a bar only if stderr is a terminal."""
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

        def heard(result: "CaseResult") -> None:
            nonlocal failed
            failed += not result.holds
            bar.update(task, advance=1, description=f"{failed} failed" if failed else "")

        yield heard
