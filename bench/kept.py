"""The figures that a commit keeps in ``docs/performance.json``, and what has fallen since."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.table import Table

from bench.figures import Figure

KEPT: Final = Path(__file__).parent.parent / "docs" / "performance.json"
TOLERANCE: Final = 0.1
"""A figure has fallen if its median is worse by more than this part of the former one."""


class Fall(NamedTuple):
    """A figure whose median is worse than the one that was kept by more than a tenth."""

    figure: Figure
    former: Mapping[str, Any]


def machine() -> dict[str, object]:
    return {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


def kept(file: Path = KEPT) -> dict[str, dict[str, Any]]:
    """Return the figures that are kept, by name; none if there is no file."""
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return {row["figure"]: row for row in rows}


def keep(results: Iterable[Figure], file: Path = KEPT) -> None:
    """Keep ``results`` in place of the former figures of the same names; all others stay."""
    commit = subprocess.run(("git", "rev-parse", "--short", "HEAD"), cwd=KEPT.parent, capture_output=True, text=True)
    measured = {"commit": commit.stdout.strip(), **machine()}
    rows = kept(file) | {figure.name: as_row(figure) | measured for figure in results if not figure.missing}
    file.write_text(json.dumps([rows[name] for name in sorted(rows)], indent=1) + "\n")


def as_row(figure: Figure) -> dict[str, Any]:
    """Return the figure as JSON has it."""
    return {
        "figure": figure.name,
        "unit": figure.unit,
        "median": None if figure.missing else figure.median,
        "min": min(figure.samples, default=None),
        "max": max(figure.samples, default=None),
        "samples": figure.samples,
        "limit": figure.limit,
        "limit_is": "least" if figure.at_least else "most",
        "reached": None if figure.missing else figure.reached,
        **({"not_measured": figure.missing} if figure.missing else {}),
        "note": figure.note,
    }


def fallen(results: Iterable[Figure], former: Mapping[str, Mapping[str, Any]]) -> list[Fall]:
    """Return the figures that are worse than their former ones by more than ``TOLERANCE``."""
    measured = (figure for figure in results if not figure.missing)
    falls = (Fall(figure, former[figure.name]) for figure in measured if figure.name in former)
    return [fall for fall in falls if _is_worse(fall)]


def _is_worse(fall: Fall) -> bool:
    now, then = fall.figure.median, fall.former["median"]
    return bool(now < then * (1 - TOLERANCE) if fall.figure.at_least else now > then * (1 + TOLERANCE))


def fallen_table(falls: Iterable[Fall]) -> Table:
    table = Table("fell by more than a tenth", "now", "before", "change", "at commit", title_justify="left")
    for figure, former in falls:
        now = f"{figure.median:.3g} {figure.unit} ({min(figure.samples):.3g} - {max(figure.samples):.3g})"
        before = f"{former['median']:.3g} ({former['min']:.3g} - {former['max']:.3g})"
        change = f"{figure.median / former['median'] - 1:+.0%}" if former["median"] else ""
        table.add_row(figure.name, now, before, change, former["commit"])
    return table
