"""Tests of a composition: messages in, messages expected out, and what is broken meanwhile."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.composition.model import Topology
from penstock.testing.chaos.points import Point
from penstock.testing.spec.declared import Test
from penstock.testing.spec.injection import PointInjection
from penstock.testing.spec.keys import Places

LINE_LENGTH: Final = 200
"""Characters that a report has of a log's line."""


@dataclass(frozen=True)
class Case:
    """One test of a file, with the composition that it starts: no other processes than those the test wants."""

    test: Test
    topology: Topology
    places: Places
    directory: Path
    """Of the composition."""
    file: Path
    line: int
    injection: PointInjection | None = None
    """What this run of a test with ``every`` breaks or records."""

    @property
    def name(self) -> str:
        return self.test.name

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class CaseResult:
    """How a case went; it holds where there are no ``differences`` between what was expected and what was got."""

    case: Case
    seconds: float
    differences: list[str] = field(default_factory=list)
    """Lines; those that belong to the one before are indented."""
    faults: list[str] = field(default_factory=list)
    """What was injected, and when."""
    logs: dict[str, list[str]] = field(default_factory=dict)
    """The last lines of each process, where the case does not hold."""
    seen: frozenset[Point] = frozenset()
    """The points of its process that a run with an ``injection`` recorded."""
    met: bool = True
    """Whether the process came to the point of the ``injection``."""
    points: int = 0
    """How many points a test with ``every`` has struck."""
    injections: int = 0
    """How many faults that were."""
    unmet: tuple[str, ...] = ()
    """Those of them that found the process never at that point again."""

    @property
    def holds(self) -> bool:
        return not self.differences

    def report(self) -> list[str]:
        """What differs, what was broken, and the last words of the processes, line by line."""
        lines = [f"  {line}" for line in self.differences]
        lines += [f"  broken: {fault}" for fault in self.faults]
        for name, log in self.logs.items():
            said = [line if len(line) <= LINE_LENGTH else f"{line[: LINE_LENGTH - 2]} …" for line in log]
            lines += [f"  {name} said last:", *(f"    {line}" for line in said)] if log else [f"  {name} said nothing"]
        return lines
