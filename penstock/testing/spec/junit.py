"""Results as JUnit XML, for continuous integration."""

from collections.abc import Sequence
from pathlib import Path

from penstock.base.extras import extra
from penstock.testing.spec import CaseResult

with extra("test"):
    from junitparser import Failure, JUnitXml, TestCase, TestSuite


def write(results: Sequence[CaseResult], file: Path) -> None:
    """Write a suite for each test file. Raise ``OSError`` if ``file`` cannot be written."""
    whole = JUnitXml("penstock test")
    for name in dict.fromkeys(str(result.case.file) for result in results):
        suite = TestSuite(_printable(name))
        for result in results:
            if str(result.case.file) == name:
                suite.add_testcase(_case(result))
        whole.add_testsuite(suite)
    whole.update_statistics()  # type: ignore[no-untyped-call]
    whole.write(str(file), pretty=True)


def _case(result: CaseResult) -> TestCase:
    case = result.case
    directory = str(case.directory).replace("/", ".")
    entry = TestCase(_printable(case.name), _printable(directory), round(result.seconds, 3))
    if not result.holds:
        failure = Failure(_printable(result.differences[0]), "Difference")
        failure.text = _printable("\n".join([case.where, *result.report()]))
        entry.result = [failure]
    return entry


def _printable(text: str) -> str:
    """Escape control characters, most of which XML cannot express."""
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)
