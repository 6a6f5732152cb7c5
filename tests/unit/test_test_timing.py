"""Fast tests do not depend on the machine's speed: no bound on elapsed time, no short wait, no sleep for a guess."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.parts import SLOW_FOLDERS
from tests.support.harness import ROOT

CLOCKS: Final = {"monotonic", "perf_counter", "process_time", "time", "now"}
WAITS: Final = {
    "blpop",
    "brpop",
    "communicate",
    "eventually",
    "get",
    "join",
    "run",
    "timeout",
    "until",
    "wait",
    "wait_for",
}
LEAST_PATIENCE: Final = 30
"""Seconds that a fast test waits at least for what a process, a server or a task does."""
REASON: Final = "# timing: "
"""Begins the comment, on the line itself, that says why a finding is none."""
FILES: Final = sorted(
    path
    for path in (ROOT / "tests").rglob("*.py")
    if path.relative_to(ROOT / "tests").parts[0] not in SLOW_FOLDERS and path != Path(__file__)
)


class Finder(ast.NodeVisitor):
    """Collects what depends on the machine's speed in ``found``: line number and what is wrong."""

    def __init__(self, *, reads_clock: bool) -> None:
        self.found: list[tuple[int, str]] = []
        self._reads_clock = reads_clock
        self._durations: set[str] = set()
        """Names of durations in the function that it is in."""
        self._expects_timeout = self._polls = False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if any("mark.slow" in ast.unparse(each) for each in node.decorator_list):
            return
        before = self._durations, self._polls
        self._durations, self._polls = self._durations | set(_durations(node) if self._reads_clock else ()), False
        self.generic_visit(node)
        self._durations, self._polls = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_While(self, node: ast.While) -> None:
        before, self._polls = self._polls, True
        self.generic_visit(node)
        self._polls = before

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        before = self._expects_timeout
        self._expects_timeout |= any(
            "raises" in ast.unparse(each) or "suppress" in ast.unparse(each) for each in node.items
        )
        self.generic_visit(node)
        self._expects_timeout = before

    visit_AsyncWith = visit_With

    def visit_Assert(self, node: ast.Assert) -> None:
        for each in ast.walk(node.test):
            if isinstance(each, ast.Compare) and any(self._is_duration(side) for side in _lesser(each)):
                self.found.append((each.lineno, "an upper bound on elapsed time: assert what happened instead"))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node)
        options = {each.arg: each.value for each in node.keywords}
        if name == "sleep" and not self._polls and any(_number(each) >= 0.03 for each in node.args[:1]):
            self.found.append((node.lineno, "a sleep for a guess: wait for the condition"))
        limits = [*node.args[-1:], *(options[each] for each in ("timeout", "seconds") if each in options)]
        if name in WAITS and not self._expects_timeout and any(0 < _number(each) < LEAST_PATIENCE for each in limits):
            self.found.append((node.lineno, f"waits less than {LEAST_PATIENCE} s: use PATIENCE of tests/support"))
        if name == "approx" and "abs" in options and 0.05 < _number(options["abs"]) < LEAST_PATIENCE:
            self.found.append((node.lineno, "a tolerance of seconds: ask the server's clock before and after"))
        if 0 < _number(options.get("port")) < 65_536:
            self.found.append((node.lineno, "a fixed port: use free_port() of penstock.testing.server"))
        self.generic_visit(node)

    def _is_duration(self, node: ast.expr) -> bool:
        return any(
            _is_difference(each) or (isinstance(each, ast.Name) and each.id in self._durations)
            for each in ast.walk(node)
        )


def _durations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for each in ast.walk(function):
        if isinstance(each, ast.Assign) and any(map(_is_difference, ast.walk(each.value))):
            yield from (target.id for target in each.targets if isinstance(target, ast.Name))


def _is_difference(node: ast.AST) -> bool:
    """Return whether a time is subtracted, or something from it."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and any(isinstance(each, ast.Call) and _name(each) in CLOCKS for each in ast.walk(node))
    )


def _lesser(node: ast.Compare) -> Iterator[ast.expr]:
    """Yield each side that is to be less than the other."""
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
        if isinstance(operator, ast.Lt | ast.LtE):
            yield left
        elif isinstance(operator, ast.Gt | ast.GtE):
            yield right


def _name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _number(node: ast.expr | None) -> float:
    """Return a literal number, or 0."""
    value = node.value if isinstance(node, ast.Constant) else 0
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def findings(source: str) -> list[tuple[int, str]]:
    """Return line and reason of all that depends on the machine's speed, without what is marked with a reason."""
    if "pytestmark = pytest.mark.slow" in source:
        return []
    finder = Finder(reads_clock=any(f"{clock}(" in source for clock in CLOCKS))
    finder.visit(ast.parse(source))
    lines = source.splitlines()
    return [(line, why) for line, why in finder.found if REASON not in lines[line - 1]]


def test_no_fast_test_depends_on_the_speed_of_the_machine() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}: {why}" for path in FILES for line, why in findings(path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "statement",
    [
        "assert time.monotonic() - begun < 3",
        "took = perf_counter() - begun\nassert 1 < took <= 2",
        "assert abs(found - time.time()) <= 1",
        "await asyncio.sleep(0.5)",
        "await asyncio.wait_for(process.wait(), 5)",
        "await eventually(done, seconds=10)",
        "async with asyncio.timeout(10):\n    await done()",
        "assert seconds == approx(5, abs=0.9)",
        "listen(port=8080)",
    ],
)
def test_what_would_depend_on_it_is_found(statement: str) -> None:
    body = "\n".join(f"    {line}" for line in statement.splitlines())
    function = f"async def test():\n{body}\n"
    assert len(findings(function)) == 1
    assert findings(f"@pytest.mark.slow\n{function}") == []
    assert findings("\n".join(f"{line}  {REASON}it is the outage" for line in function.splitlines())) == []


@pytest.mark.parametrize(
    "statement",
    [
        "assert time.monotonic() - begun >= 0.4",
        "assert before <= written <= time.time()",
        "while not done():\n    await asyncio.sleep(0.1)",
        "with pytest.raises(TimeoutError):\n    await asyncio.wait_for(never(), 0.2)",
        "await asyncio.wait_for(process.wait(), PATIENCE)",
        "await asyncio.wait_for(process.wait(), 60)",
        "assert share == approx(0.5, abs=0.01)",
    ],
)
def test_what_would_not_depend_on_it_is_let_through(statement: str) -> None:
    body = "\n".join(f"    {line}" for line in statement.splitlines())
    assert findings(f"async def test():\n{body}\n") == []
