"""What a run of chaos found, as tables, as JSON, for continuous integration, and as a page."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from penstock import __version__
from penstock.errors import PenstockError
from penstock.testing.chaos.run import Outcome, Report

COLUMNS: Final = ("fault", "injected", "met", "lost", "doubled", "reordered", "longest stall")
TEMPLATE: Final = "report.html.jinja"


def rows(report: Report) -> list[list[object]]:
    """A row a fault, by ``COLUMNS``."""
    return [[fault, *_summed(outcomes)] for fault, outcomes in _by_fault(report.outcomes).items()]


def findings(report: Report) -> list[Outcome]:
    """The faults that broke a promise."""
    return [outcome for outcome in report.outcomes if outcome.broken]


def verdict(report: Report) -> str:
    """All of it in one sentence."""
    if not report.holds:
        return "a promise is broken"
    harmless = any(outcome.doubled or outcome.reordered for outcome in report.outcomes)
    rest = "; what was doubled or out of order was so where no more is promised" if harmless else ""
    return f"nothing was lost, and every promise kept{rest}"


def told(outcome: Outcome) -> str:
    """A finding in one line."""
    counts = {"lost": outcome.lost, "doubled": outcome.doubled, "out of order": outcome.reordered}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    where = f"; they lie in {', '.join(outcome.whereabouts)}" if outcome.whereabouts else ""
    return f"{outcome.injection}: {said} of {outcome.pushed} messages{where}"


def again(outcome: Outcome, directory: str, seed: int) -> str:
    """The command that injects just this fault."""
    words = ["penstock", "chaos", directory, "--fault", outcome.injection.fault]
    if outcome.injection.point:
        words += ["--point", str(outcome.injection.point)]
    else:
        words += ["--seed", str(seed)]
    return shlex.join(words)


def plain(report: Report, directory: str) -> dict[str, Any]:
    return {
        "composition": directory,
        "seed": report.seed,
        "seconds": round(report.seconds, 1),
        "points": [asdict(point) for point in report.points],
        "faults": [dict(zip(COLUMNS, row, strict=True)) for row in rows(report)],
        "outcomes": [
            {**_plain(outcome), "again": again(outcome, directory, report.seed)} for outcome in report.outcomes
        ],
        "books": report.books,
        "holds": report.holds,
    }


def write_junit(report: Report, directory: str, file: Path) -> None:
    """A test case for every fault. Raises ``OSError``."""
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    whole = JUnitXml("penstock chaos")
    for fault, outcomes in _by_fault(report.outcomes).items():
        suite = TestSuite(f"{directory}: {fault}")
        for outcome in outcomes:
            injection = outcome.injection
            name = str(injection.point or injection)
            case = TestCase(name, directory.replace("/", "."), round(outcome.ended - outcome.begun, 3))
            if outcome.broken:
                failure = Failure(told(outcome), "Broken promise")
                failure.text = again(outcome, directory, report.seed)
                case.result = [failure]
            elif not outcome.met:
                case.result = [Skipped("this command did not come again")]
            suite.add_testcase(case)
        whole.add_testsuite(suite)
    whole.update_statistics()  # type: ignore[no-untyped-call]
    whole.write(str(file), pretty=True)


def page(report: Report, directory: str) -> str:
    """One HTML file that needs nothing else. Raises ``PenstockError`` where what draws it is not installed."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup

        from penstock.spark.plots import COLOURS
        from penstock.testing.chaos.timeline import timeline
    except ImportError as error:
        raise PenstockError(f"{error.name} is not installed: pip install 'penstock[plots]'") from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files("penstock.testing.chaos").joinpath(TEMPLATE).read_text()).render(
        directory=directory,
        report=report,
        verdict=verdict(report),
        version=__version__,
        colours=COLOURS,
        columns=COLUMNS,
        rows=rows(report),
        findings=[(told(outcome), again(outcome, directory, report.seed)) for outcome in findings(report)],
        unmet=[str(outcome.injection) for outcome in report.outcomes if not outcome.met],
        timeline=Markup(timeline(report)),
    )


def _summed(outcomes: Sequence[Outcome]) -> Iterator[object]:
    yield len(outcomes)
    for name in ("met", "lost", "doubled", "reordered"):
        yield sum(int(getattr(outcome, name)) for outcome in outcomes)
    yield round(max(outcome.stall for outcome in outcomes), 2)


def _by_fault(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    kinds: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        kinds.setdefault(outcome.injection.fault, []).append(outcome)
    return kinds


def _plain(outcome: Outcome) -> dict[str, Any]:
    injection = outcome.injection
    point = asdict(injection.point) if injection.point else None
    return {**asdict(outcome), "injection": {"fault": injection.fault, "point": point, "seed": injection.seed or None}}
