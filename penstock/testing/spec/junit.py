"""Outcomes as JUnit's XML, which continuous integration reads."""

from collections.abc import Sequence
from pathlib import Path

from junitparser import Failure, JUnitXml, TestCase, TestSuite

from penstock.testing.spec import Outcome


def write(outcomes: Sequence[Outcome], file: Path) -> None:
    """A suite a test file. Raises ``OSError``."""
    whole = JUnitXml("penstock test")
    for name in dict.fromkeys(str(outcome.trial.file) for outcome in outcomes):
        suite = TestSuite(_printable(name))
        for outcome in outcomes:
            if str(outcome.trial.file) == name:
                suite.add_testcase(_case(outcome))
        whole.add_testsuite(suite)
    whole.update_statistics()  # type: ignore[no-untyped-call]
    whole.write(str(file), pretty=True)


def _case(outcome: Outcome) -> TestCase:
    trial = outcome.trial
    case = TestCase(
        _printable(trial.name), _printable(str(trial.directory).replace("/", ".")), round(outcome.seconds, 3)
    )
    if not outcome.holds:
        failure = Failure(_printable(outcome.differences[0]), "Difference")
        failure.text = _printable("\n".join([trial.where, *outcome.report()]))
        case.result = [failure]
    return case


def _printable(text: str) -> str:
    """XML has no word for most control characters."""
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)
