"""What the demos compare results with: the figures of each month, from its rows."""

from typing import Any

import pytest

from compose.months import is_right, rows_by_month


@pytest.mark.parametrize("change", [{"mean": 7.1}, {"max": 12}, {"rainy": 0}, {"days": 30}, {"mean": None}])
def test_a_result_is_right_only_if_each_number_is(change: dict[str, Any]) -> None:
    rows = rows_by_month()["2012-01"]
    right = {"days": 31, "mean": 7.05, "max": 12.8, "rainy": 22}
    assert is_right(right, rows)
    assert not is_right(right | change, rows)
    assert not is_right(right, [])
