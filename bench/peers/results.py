"""Results of the comparison, and the ratios between peers."""

import os
import platform
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench.peers.works import LIMIT, OURS, Work
from penstock.testing.server import binary


@dataclass(frozen=True)
class Row:
    """Result of a peer at a work: one sample per round, in the work's unit."""

    peer: str
    work: Work
    how: str
    messages: int
    samples: tuple[float, ...] = ()
    missing: str = ""
    """Why there are no samples."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def ratio_to(self, other: "Row") -> float | None:
        """Return the median of the rounds' ratios (the machine's pace changes between rounds); None without samples."""
        if not (self.samples and other.samples):
            return None
        return statistics.median(mine / its for mine, its in zip(self.samples, other.samples, strict=False))


@dataclass(frozen=True)
class Member:
    """A system that took part: name, version, and what it does that Penstock does not."""

    name: str
    version: str
    more: str


@dataclass(frozen=True)
class Report:
    machine: dict[str, str]
    rounds: int
    members: tuple[Member, ...]
    rows: tuple[Row, ...]

    def of(self, work: Work) -> list[Row]:
        return [row for row in self.rows if row.work is work]

    def ratio(self, row: Row, to: str) -> float | None:
        """Return the ratio to the peer named ``to`` at the same work; None if either was not measured."""
        other = next((each for each in self.of(row.work) if each.peer == to), None)
        return row.ratio_to(other) if other else None

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "peers": [{"peer": each.name, "version": each.version, "more": each.more} for each in self.members],
            "figures": [self._as_json(row) for row in self.rows],
        }

    def _as_json(self, row: Row) -> dict[str, Any]:
        measured = {
            "median": row.median if row.samples else None,
            "min": min(row.samples, default=None),
            "max": max(row.samples, default=None),
            "samples": list(row.samples),
            "of_limit": self.ratio(row, LIMIT),
            "of_ours": self.ratio(row, OURS),
        }
        identity = {
            "peer": row.peer,
            "work": str(row.work),
            "unit": row.work.unit,
            "messages": row.messages,
            "how": row.how,
        }
        return {**identity, **measured, **({"not_measured": row.missing} if row.missing else {})}


def short(number: float) -> str:
    """Format with three significant digits."""
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def machine() -> dict[str, str]:
    """Return what figures depend on (cores, versions, load), as text."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])} {platform.machine()}",
        "Python": platform.python_version(),
        "Node": _first_line("node", "--version").removeprefix("v") or "none",
        "server": _server(),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _server() -> str:
    """Return the name and version of the server, Redis or Valkey."""
    line = _first_line(binary(), "--version")
    match = re.match(r"(\w+) server v=([\d.]+)", line)
    return f"{match[1]} {match[2]}" if match else line or "unknown"


def _first_line(*command: str) -> str:
    if not shutil.which(command[0]):
        return ""
    output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout
    return next(iter(output.splitlines()), "")


def ours_measured(rows: Iterable[Row]) -> bool:
    """Return True if Penstock and the limit were measured; a missing peer is reported but is no failure."""
    return all(row.samples for row in rows if row.peer in (LIMIT, OURS))
