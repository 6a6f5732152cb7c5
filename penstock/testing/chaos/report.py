"""The report of a chaos run: as a table, JSON, JUnit XML and an HTML page."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from penstock.base.extras import extra
from penstock.testing.chaos.run import FaultResult, Report

COLUMNS: Final = ("fault", "injected", "met", "lost", "doubled", "reordered", "longest stall")
TEMPLATE: Final = "report.html.jinja"


def rows(report: Report) -> list[list[object]]:
    """Return a row for each kind of fault, by ``COLUMNS``."""
    return [[fault, *_summed(results)] for fault, results in _by_fault(report.results).items()]


def findings(report: Report) -> list[FaultResult]:
    """Return the results of faults that broke a promise."""
    return [result for result in report.results if result.broken]


def verdict(report: Report) -> str:
    """Return the verdict in one sentence."""
    if not report.holds:
        return "a promise is broken"
    harmless = any(result.doubled or result.reordered for result in report.results)
    rest = "; what was doubled or out of order was so where no more is promised" if harmless else ""
    return f"nothing was lost, and every promise kept{rest}"


def summary(result: FaultResult) -> str:
    """Return a finding in one line."""
    counts = {"lost": result.lost, "doubled": result.doubled, "out of order": result.reordered}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    where = f"; they lie in {', '.join(result.whereabouts)}" if result.whereabouts else ""
    return f"{result.injection}: {said} of {result.pushed} messages{where}"


def rerun(result: FaultResult, directory: str, seed: int) -> str:
    """Return the command that injects only this fault."""
    words = ["penstock", "chaos", directory, "--fault", result.injection.fault]
    if result.injection.point:
        words += ["--point", str(result.injection.point)]
    else:
        words += ["--seed", str(seed)]
    return shlex.join(words)


def as_json(report: Report, directory: str) -> dict[str, Any]:
    return {
        "composition": directory,
        "seed": report.seed,
        "seconds": round(report.seconds, 1),
        "points": [asdict(point) for point in report.points],
        "faults": [dict(zip(COLUMNS, row, strict=True)) for row in rows(report)],
        "outcomes": [
            {**_result_as_json(result), "again": rerun(result, directory, report.seed)} for result in report.results
        ],
        "books": report.books,
        "holds": report.holds,
    }


def write_junit(report: Report, directory: str, file: Path) -> None:
    """Write a test case for every fault. Raise ``OSError`` if the file cannot be written."""
    with extra("test"):
        from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    whole = JUnitXml("penstock chaos")
    for fault, results in _by_fault(report.results).items():
        suite = TestSuite(f"{directory}: {fault}")
        for result in results:
            injection = result.injection
            name = str(injection.point or injection)
            case = TestCase(name, directory.replace("/", "."), round(result.ended - result.begun, 3))
            if result.broken:
                failure = Failure(summary(result), "Broken promise")
                failure.text = rerun(result, directory, report.seed)
                case.result = [failure]
            elif not result.met:
                case.result = [Skipped("this command did not come again")]
            suite.add_testcase(case)
        whole.add_testsuite(suite)
    whole.update_statistics()  # type: ignore[no-untyped-call]
    whole.write(str(file), pretty=True)


def page(report: Report, directory: str) -> str:
    """Return a self-contained HTML page. Raise ``PenstockError`` if its library is not installed."""
    with extra("plots"):
        from penstock.spark import page as pages
        from penstock.spark.tables import Table
        from penstock.testing.chaos.timeline import timeline

        return pages.rendered(
            pages.resource(TEMPLATE, __package__),
            directory=directory,
            report=report,
            verdict=verdict(report),
            table=Table("sums", (*COLUMNS[:-1], f"{COLUMNS[-1]} s"), [_texts(row) for row in rows(report)]),
            findings=[(summary(result), rerun(result, directory, report.seed)) for result in findings(report)],
            unmet=[str(result.injection) for result in report.results if not result.met],
            timeline=timeline(report.results),
        )


def _texts(row: Sequence[Any]) -> list[int | str]:
    """Return ``row`` as cells of a table, in which a stall has two decimals."""
    return [f"{cell:.2f}" if isinstance(cell, float) else cell for cell in row]


def _summed(results: Sequence[FaultResult]) -> Iterator[object]:
    yield len(results)
    for name in ("met", "lost", "doubled", "reordered"):
        yield sum(int(getattr(result, name)) for result in results)
    yield round(max(result.stall for result in results), 2)


def _by_fault(results: Sequence[FaultResult]) -> dict[str, list[FaultResult]]:
    kinds: dict[str, list[FaultResult]] = {}
    for result in results:
        kinds.setdefault(result.injection.fault, []).append(result)
    return kinds


def _result_as_json(result: FaultResult) -> dict[str, Any]:
    injection = result.injection
    point = asdict(injection.point) if injection.point else None
    return {**asdict(result), "injection": {"fault": injection.fault, "point": point, "seed": injection.seed or None}}
