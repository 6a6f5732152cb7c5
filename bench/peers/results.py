"""What was measured, and how one peer's figures stand to another's."""

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
    """A peer at a work: one sample a round, in the work's unit."""

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

    def over(self, other: "Row") -> float | None:
        """The median of the ratios of each round, since the machine changes its pace between rounds."""
        if not (self.samples and other.samples):
            return None
        return statistics.median(mine / its for mine, its in zip(self.samples, other.samples, strict=False))


@dataclass(frozen=True)
class Member:
    """Who took part: name, version, and what it does that we do not."""

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
        """To the limit or to ours in the same work; nothing where either was not measured."""
        other = next((each for each in self.of(row.work) if each.peer == to), None)
        return row.over(other) if other else None

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
        told = {
            "peer": row.peer,
            "work": str(row.work),
            "unit": row.work.unit,
            "messages": row.messages,
            "how": row.how,
        }
        return {**told, **measured, **({"not_measured": row.missing} if row.missing else {})}


def short(number: float) -> str:
    """Three digits that count."""
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def machine() -> dict[str, str]:
    """What figures depend on, as words."""
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
    """Name and version, of Redis or Valkey."""
    line = _first_line(binary(), "--version")
    said = re.match(r"(\w+) server v=([\d.]+)", line)
    return f"{said[1]} {said[2]}" if said else line or "unknown"


def _first_line(*command: str) -> str:
    if not shutil.which(command[0]):
        return ""
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout
    return next(iter(said.splitlines()), "")


def reached(rows: Iterable[Row]) -> bool:
    """Whether ours and the limit were measured; what others lack is told, and is not our failure."""
    return all(row.samples for row in rows if row.peer in (LIMIT, OURS))
