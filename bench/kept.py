"""The figures that a commit keeps in ``docs/performance.json``, the page that shows them, and what has fallen since."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.table import Table

from bench.figures import Figure

KEPT: Final = Path(__file__).parent.parent / "docs" / "performance.json"
PAGE: Final = KEPT.with_suffix(".md")
TABLE: Final = re.compile(r"(<!-- bench ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
"""Where the page has the figures of a group."""
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


def keep(results: Mapping[str, Iterable[Figure]], file: Path = KEPT) -> None:
    """Keep ``results``, by group, in place of the former figures of the same names; all others stay where they are."""
    commit = subprocess.run(("git", "rev-parse", "--short", "HEAD"), cwd=KEPT.parent, capture_output=True, text=True)
    measured = {"commit": commit.stdout.strip(), **machine()}
    rows = kept(file)
    for group, figures in results.items():
        rows |= {each.name: {"group": group} | as_row(each) | measured for each in figures if not each.missing}
    file.write_text(json.dumps([*rows.values()], indent=1) + "\n")


def filled(page: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return ``page`` with the figures of ``rows`` in its tables."""
    by_group: dict[str, list[str]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append(_line(row))

    def table(found: re.Match[str]) -> str:
        begin, group, end = found.groups()
        lines = ["| figure | measured: median (min - max) | wanted |", "| --- | --- | --- |", *by_group[group]]
        return begin + "".join(f"{line}\n" for line in lines) + end

    return TABLE.sub(table, page)


def _line(row: Mapping[str, Any]) -> str:
    unit = row["unit"] if row["unit"] in {"", "x"} else f" {row['unit']}"
    measured = f"{short(row['median'])}{unit}"
    if row["max"] > row["min"]:
        measured += f" ({short(row['min'])} - {short(row['max'])})"
    measured += f": {row['note']}" if row["note"] else ""
    wanted = f"at {row['limit_is']} {row['limit']:,g}{unit}"
    return f"| {row['figure']} | {'' if row['reached'] else '**missed**: '}{measured} | {wanted} |"


def short(number: float) -> str:
    """Return ``number`` with three digits, or all of its whole ones."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


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
