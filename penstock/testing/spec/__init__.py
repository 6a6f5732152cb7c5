"""Tests of a composition: messages in, messages expected out, and faults in between."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.composition.model import Composition
from penstock.testing.chaos.points import Point
from penstock.testing.spec.declared import Test
from penstock.testing.spec.injection import PointInjection
from penstock.testing.spec.keys import Places

LINE_LENGTH: Final = 200
"""Characters of a log line that a report shows."""


@dataclass(frozen=True)
class Case:
    """One test of a file, with the part of the composition that it starts."""

    test: Test
    composition: Composition
    places: Places
    directory: Path
    """The folder of the composition."""
    file: Path
    line: int
    injection: PointInjection | None = None
    """For a run of a test with ``every``: the fault to inject, or the process to record."""

    @property
    def name(self) -> str:
        return self.test.name

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class CaseResult:
    """The result of a case, which holds if there are no ``differences`` from what was expected."""

    case: Case
    seconds: float
    differences: list[str] = field(default_factory=list)
    """Lines; an indented one belongs to the line before."""
    faults: list[str] = field(default_factory=list)
    """The faults injected, with their times."""
    logs: dict[str, list[str]] = field(default_factory=dict)
    """The last log lines of each process, if the case does not hold."""
    seen: frozenset[Point] = frozenset()
    """The points of its process that a run with an ``injection`` recorded."""
    met: bool = True
    """True if the process met the point of the ``injection``."""
    points: int = 0
    """Points at which a test with ``every`` has injected faults."""
    injections: int = 0
    """The number of these faults."""
    unmet: tuple[str, ...] = ()
    """Those of them whose point the process never met again."""

    @property
    def holds(self) -> bool:
        return not self.differences

    def report(self) -> list[str]:
        """Return lines with the differences, the faults, and the end of each log."""
        lines = [f"  {line}" for line in self.differences]
        lines += [f"  broken: {fault}" for fault in self.faults]
        for name, log in self.logs.items():
            said = [line if len(line) <= LINE_LENGTH else f"{line[: LINE_LENGTH - 2]} …" for line in log]
            lines += [f"  {name} said last:", *(f"    {line}" for line in said)] if log else [f"  {name} said nothing"]
        return lines
