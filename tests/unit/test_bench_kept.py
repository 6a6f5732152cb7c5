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


def test_what_was_not_measured_or_not_kept_is_no_fall(tmp_path: Path) -> None:
    file = tmp_path / "performance.json"
    assert kept(file) == {}
    keep({"mpush": [measured("a", 1), measured("b", missing="no Java")]}, file)
    assert [*kept(file)] == ["a"]
    assert fallen([measured("a", missing="no Java"), measured("b", 0.1), measured("new", 0.1)], kept(file)) == []


def test_figures_that_were_not_measured_anew_stay(tmp_path: Path) -> None:
    file = tmp_path / "performance.json"
    keep({"mpush": [measured("b", 1)], "vpush": [measured("a", 2)]}, file)
    keep({"mpush": [measured("c", 4), measured("b", 3)]}, file)
    assert {name: (row["group"], row["median"]) for name, row in kept(file).items()} == {
        "b": ("mpush", 3),
        "a": ("vpush", 2),
        "c": ("mpush", 4),
    }
    assert len({row["commit"] for row in kept(file).values()}) == 1


def test_the_page_shows_the_figures_of_a_group() -> None:
    rate = {"group": "mpush", "figure": "rate", "unit": "x", "median": 0.5, "min": 0.4, "max": 1234.5}
    row = rate | {"limit": 1.5, "limit_is": "least", "reached": False, "note": "5 k/s"}
    found = filled("before\n<!-- bench mpush -->\nof before\n<!-- end -->\nafter", [row])
    assert "| rate | **missed**: 0.5x (0.4 - 1,234): 5 k/s | at least 1.5x |\n<!-- end -->\nafter" in found
    assert found.startswith("before\n<!-- bench mpush -->\n| figure |")
    assert "of before" not in found


def test_the_page_of_the_project_shows_what_it_keeps() -> None:
    rows = json.loads(KEPT.read_text())
    assert len({row["figure"] for row in rows}) == len(rows) > 0
    page = PAGE.read_text()
    assert filled(page, rows) == page, "python -m bench GROUP --keep writes both"
    assert all(f"| {row['figure']} |" in page for row in rows)
