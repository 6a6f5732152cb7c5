"""Seattle's weather by month, as tasks and jobs have it, and the check of their summaries."""

from collections.abc import Sequence
from decimal import Decimal
from math import isclose
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parent / "weather/seattle-weather.csv"
HALF_CENT: Final = 0.0051
"""A mean is rounded to two digits."""


def rows_by_month() -> dict[str, list[str]]:
    """Return rows such as ``2012/01/02,10.9,10.6,2.8,4.5,rain`` by month, e.g. ``2012-01``: date, rain (mm),
    highest and lowest temperature (C), wind (m/s), sky.
    """
    found = dict[str, list[str]]()
    for row in DATA.read_text().splitlines()[1:]:
        found.setdefault(row[:7].replace("/", "-"), []).append(row)
    return found


def is_right(result: Any, rows: Sequence[str]) -> bool:
    """Return whether ``result`` is the summary of ``rows``, which is computed here by other means than in workers."""
    if not isinstance(result, dict) or not rows:
        return False
    columns = [row.split(",") for row in rows]
    warmest = [Decimal(each[2]) for each in columns]
    expected = {
        "days": len(rows),
        "max": float(max(warmest)),
        "rainy": len([each for each in columns if Decimal(each[1])]),
    }
    mean = float(sum(warmest) / len(rows))
    number = result.get("mean")
    return (
        {name: result.get(name) for name in expected} == expected
        and isinstance(number, int | float)
        and isclose(number, mean, rel_tol=0, abs_tol=HALF_CENT)
    )
