"""What ``make bench`` says of figures that were better at a former commit."""

import json
from pathlib import Path

import pytest

from bench.figures import Figure
from bench.kept import KEPT, PAGE, fallen, filled, keep, kept


def measured(name: str, *samples: float, at_least: bool = True, missing: str = "") -> Figure:
    return Figure(name, "x", [*samples], limit=1, at_least=at_least, missing=missing)


@pytest.mark.parametrize(
    ("at_least", "before", "now", "fell"),
    [
        (True, 1.0, 0.89, True),
        (True, 1.0, 0.91, False),
        (True, 1.0, 5.0, False),
        (False, 10.0, 11.1, True),
        (False, 10.0, 10.9, False),
        (False, 10.0, 1.0, False),
        (False, 0.0, 1.0, True),
    ],
)
def test_a_median_that_is_worse_by_more_than_a_tenth_fell(
    tmp_path: Path, at_least: bool, before: float, now: float, fell: bool
) -> None:
    file = tmp_path / "performance.json"
    keep({"mpush": [measured("rate", before - 1, before, before + 1, at_least=at_least)]}, file)
    found = fallen([measured("rate", now, at_least=at_least)], kept(file))
    assert [fall.figure.name for fall in found] == ["rate"] * fell


def test_the_page_of_the_project_shows_what_it_keeps() -> None:
    rows = json.loads(KEPT.read_text())
    assert len({row["figure"] for row in rows}) == len(rows) > 0
    page = PAGE.read_text()
    assert filled(page, rows) == page, "python -m bench GROUP --keep writes both"
    assert all(f"| {row['figure']} |" in page for row in rows)
