"""Waits in lists of unlike workers, simulated on a virtual clock; the decisions are those of the script's own code."""

from typing import Any

import pytest

from tests.support.simulated_balance import simulate


@pytest.mark.parametrize("whole", [True, False], ids=["in hand counted", "in hand unknown"])
def test_of_unlike_workers_the_slowest_waits_are_at_most_half_of_those_by_length(here: Any, whole: bool) -> None:
    by_length = simulate(here, "length", arrivals=5_000, whole=whole)
    by_wait = simulate(here, "expectedWait", arrivals=5_000, whole=whole)
    assert by_wait.p99 <= 0.5 * by_length.p99, (by_wait, by_length)
    assert sum(by_wait.messages) == 5_000


def test_of_equal_workers_nothing_is_lost(here: Any) -> None:
    by_length, by_wait = (
        simulate(here, policy, rates=(50,) * 4, load=0.8, arrivals=5_000) for policy in ("length", "expectedWait")
    )
    assert by_wait.p99 <= 1.3 * by_length.p99, (by_wait, by_length)


def test_a_worker_that_becomes_slow_gets_less(here: Any) -> None:
    slowed = simulate(here, "expectedWait", rates=(50,) * 4, load=0.6, arrivals=5_000, slowed=6)
    by_length = simulate(here, "length", rates=(50,) * 4, load=0.6, arrivals=5_000, slowed=6)
    assert slowed.messages[0] < 0.8 * min(slowed.messages[1:])
    assert slowed.p99 <= 0.7 * by_length.p99, (slowed, by_length)
