"""A pytest plugin: run tests that were red among the others again, each alone, and let only those count that stay red.

    pytest -p tests.support.again --numprocesses 4 ...

A test that is red among the others and green alone is reported as ``flaky`` with its first failure: it needs mending,
but says nothing against the change. If more than ``MAX_AGAIN`` tests are red, none runs again.
"""

import subprocess
import sys
from typing import Final

import pytest

MAX_AGAIN: Final = 10
FLAKY: Final = pytest.StashKey[list[pytest.TestReport]]()
"""Reports of the first failures of tests that were green alone."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    config = session.config
    config.stash[FLAKY] = []
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus != pytest.ExitCode.TESTS_FAILED or hasattr(config, "workerinput") or reporter is None:
        return
    red = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    names = {report.nodeid for report in red if isinstance(report, pytest.TestReport)}
    if len(names) > MAX_AGAIN or not all(isinstance(report, pytest.TestReport) for report in red):
        return
    still_red = {name for name in sorted(names) if not _green_alone(name, reporter)}
    config.stash[FLAKY] = [report for report in red if report.nodeid not in still_red]
    for kind in ("failed", "error"):
        reporter.stats[kind] = [each for each in reporter.stats.get(kind, ()) if each.nodeid in still_red]
    reporter.stats["flaky"] = config.stash[FLAKY]
    if not still_red:
        session.exitstatus = pytest.ExitCode.OK


def _green_alone(name: str, reporter: pytest.TerminalReporter) -> bool:
    reporter.ensure_newline()
    reporter.write_line(f"again, alone: {name}")
    command = [sys.executable, "-m", "pytest", "--quiet", "--no-header", "--numprocesses", "0", name]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        reporter.write_line(ended.stdout + ended.stderr)
    return ended.returncode == 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for report in config.stash.get(FLAKY, []):
        terminalreporter.section(f"flaky: {report.nodeid}", yellow=True)
        terminalreporter.line(report.longreprtext)
    for name in sorted({report.nodeid for report in config.stash.get(FLAKY, [])}):
        terminalreporter.write_line(f"FLAKY {name}", yellow=True)
