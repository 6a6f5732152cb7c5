"""All tests in parts of a few minutes, each for whoever touches what it is about.

    python -m tests.parts fast            # what make test runs after the checks
    python -m tests.parts process spark   # parts of the slow tests
    python -m tests.parts all             # checks, fast tests and all parts; a red one does not end it
    python -m tests.parts --busy 5        # the fast tests, five times, beside two busy loops

The table at the end says what each part found; the status is 1 if anything was red. ``--json`` prints it as JSON,
and what pytest says on stderr.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TextIO

import pytest

from penstock.cli._text import print_table
from penstock.core.orphaned import Watchdog

ROOT: Final = Path(__file__).parent.parent
FAST: Final = "fast"
FAST_FOLDERS: Final = ("unit", "scripts", "bus", "http", "jobs", "outbox", "cli", "contracts", "promises")
SLOW_FOLDERS: Final = {"process", "reliability", "spark"}
"""Folders of tests that start service processes, kill them many times, or need Java."""
PARTS: Final = {
    "node": r"test_interop|test_gateway_node|test_move_node|\[.*\bnode\b|test_bus_demo|test_jobs_demo",
    "browser": r"test_gateway_browser|test_report_page|test_web_clients",
    "container": r"process/test_containers",
    "spark": r"tests/spark/",
    "outages": r"reliability/test_(transport|server_trouble|durability|failover|full_server|restart|tracking_restart)"
    r"|reliability/test_(lost_reply|bus_|clock)",
    "reliability": r"tests/reliability/",
    "chaos": r"process/test_(cli_)?chaos",
    "compositions": r"process/test_(compositions|sites|spec_every|tracked\b|weather|sandbox|cli_test|cli_up|elsewhere)"
    r"|process/test_(\w+_demo|original_readme|tutorials)",
    "process": r"tests/process/",
    "contracts": r"tests/contracts/",
    "http": r"tests/http/",
    "library": r"tests/(bus|jobs|outbox)/",
    "cli": r"tests/",
}
"""Name of each part of the slow tests, and what the names of its tests match; a test belongs to the first that does."""
OWN_TOOLS: Final = {"node", "browser", "container"}
"""Parts that need a program which Python's packages do not bring: all their tests are slow."""
COMMANDS: Final = {"lint": ["make", "--no-print-directory", "lint"], "container": ["scripts/container-check"]}
"""What is run in a part besides its tests."""
NEEDED: Final = {"container": "buildah"}
"""The program that the command of a part needs."""
SLOW_ROUNDS: Final = "6"
"""PENSTOCK_ROUNDS of a part, unless it is set."""
RESULT: Final = "PENSTOCK_TEST_RESULT"
"""Names the file into which pytest writes what it found."""


@dataclass
class Found:
    """What a part found; ``skipped`` counts its tests by reason, ``red`` has the names of those that failed."""

    part: str
    passed: int = 0
    red: list[str] = field(default_factory=list)
    flaky: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0


def part_of(test: str) -> str:
    """Return the part that a slow test belongs to, by its name as pytest writes it."""
    return next(part for part, pattern in PARTS.items() if re.search(pattern, test))


def is_slow(test: str) -> bool:
    """Return whether a test is slow by where it is, or by what it needs, whatever its marks say."""
    return test.split("/")[1] in SLOW_FOLDERS or part_of(test) in OWN_TOOLS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=PARTS, help="run only the tests of that part of the slow ones")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("part"):
        others = [item for item in items if part_of(item.nodeid) != part]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if part_of(item.nodeid) == part]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write what was found for the process that started this one."""
    if path := os.environ.get(RESULT):
        stats: dict[str, list[Any]] = terminalreporter.stats
        skipped = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in stats.get("skipped", ()))
        red = sorted({report.nodeid for kind in ("failed", "error") for report in stats.get(kind, ())})
        flaky = sorted({report.nodeid for report in stats.get("flaky", ())})
        found = {"passed": len(stats.get("passed", ())), "red": red, "flaky": flaky, "skipped": skipped}
        Path(path).write_text(json.dumps(found))


def run(part: str, output: TextIO, *options: str) -> Found:
    """Run a part, write what pytest says to ``output``, and return what was found."""
    found, begun = Found(part), time.monotonic()
    if part == FAST:
        folders = [f"tests/{name}" for name in FAST_FOLDERS]
        _run_tests(found, output, ("-m", "not slow", *options, *folders), {})
    elif part in PARTS:
        rounds = {"PENSTOCK_ROUNDS": os.environ.get("PENSTOCK_ROUNDS", SLOW_ROUNDS)}
        _run_tests(found, output, ("-m", "slow", "--part", part, *options, "tests"), rounds)
    if part in COMMANDS:
        _run_command(found, output, COMMANDS[part], NEEDED.get(part))
    found.seconds = round(time.monotonic() - begun, 1)
    return found


def _run_tests(found: Found, output: TextIO, options: Sequence[str], more: dict[str, str]) -> None:
    with TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        words = [sys.executable, "-m", "pytest", "-p", "tests.parts", "--numprocesses", "4", "--dist", "loadgroup"]
        environment = {**os.environ, **more, RESULT: str(result)}
        status = subprocess.run([*words, *options], cwd=ROOT, env=environment, stdout=output, check=False).returncode
        if result.exists():
            vars(found).update(json.loads(result.read_text()))
    if status and not found.red:
        found.red.append(f"pytest: status {status}")


def _run_command(found: Found, output: TextIO, words: Sequence[str], needed: str | None) -> None:
    if needed and not shutil.which(needed):
        found.skipped[f"{words[0]}: no {needed}"] = 1
    elif status := subprocess.run(words, cwd=ROOT, stdout=output, check=False).returncode:
        found.red.append(f"{' '.join(words)}: status {status}")


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep ``loops`` cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    watchdogs = [Watchdog(process.pid) for process in processes]
    try:
        yield
    finally:
        for process, watchdog in zip(processes, watchdogs, strict=True):
            process.kill()
            process.wait()
            watchdog.release()


def show(all_found: Sequence[Found], *, as_json: bool) -> None:
    """Print a table of what was found, then each red test and why tests were skipped."""
    if as_json:
        print(json.dumps([asdict(found) for found in all_found]))
        return
    rows = [
        (each.part, each.passed, len(each.red), len(each.flaky), sum(each.skipped.values()), f"{each.seconds:,.0f} s")
        for each in all_found
    ]
    print_table("Tests", ("part", "passed", "failed", "flaky", "skipped", "time"), rows)
    for each in all_found:
        for name in each.red:
            print(f"{each.part}: failed: {name}")
        for name in each.flaky:
            print(f"{each.part}: flaky: {name}")
        for why, count in each.skipped.items():
            print(f"{each.part}: skipped {count}: {why}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parts", description=(__doc__ or "").partition("\n")[0])
    known = ["lint", FAST, *PARTS]
    expected = f"all {' '.join(known)}"
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one or more of: {expected}")
    parser.add_argument("--busy", type=int, metavar="ROUNDS", help="run the fast tests so often beside two busy loops")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    given = parser.parse_args()
    if not given.busy and not given.parts:
        parser.error(f"no part is named: expected one or more of: {expected}")
    if unknown := " ".join(sorted({*given.parts} - {"all", *known})):
        parser.error(f"unknown: {unknown}; expected one or more of: {expected}")
    output = sys.stderr if given.json else sys.stdout
    if given.busy:
        with busy(2):
            all_found = [run(FAST, output) for _ in range(given.busy)]
    else:
        chosen = known if "all" in given.parts else given.parts
        all_found = [run(part, output, *(("-p", "tests.support.again") if part == FAST else ())) for part in chosen]
    show(all_found, as_json=given.json)
    return int(any(found.red for found in all_found))


if __name__ == "__main__":
    sys.exit(main())
