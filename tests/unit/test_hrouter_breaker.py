"""hrouter's breakers on a virtual clock: they open, let through what will be served in time, and close."""

import random
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import pytest

from services.hrouter.breaker import LOOK_SECONDS, MAX_RETRY_AFTER, WARM, Gate, gates_of
from services.hrouter.rule import Rule

BEGIN = 1_800_000_000.0
Rate = Callable[[float], float]
"""A number a second, by the seconds since the beginning."""


class Asked(NamedTuple):
    """One request: when it came, and how long it waited for a worker; None if it was refused."""

    at: float
    waited: float | None


def simulate(
    served: Rate, offered: Rate, timeout: float, seconds: float, workers: int = 1, gates: int = 1
) -> list[Asked]:
    """Simulate one list, to which the routers ``gates`` push in turn; ``served`` is the rate of each of ``workers``.

    Work takes a random time (exponential); while ``served`` is 0 nobody begins any.
    """
    chance, routers = random.Random(7), [Gate(["list"]) for _ in range(gates)]
    looked, free, begins = [0.0] * gates, [0.0] * workers, deque[float]()
    asked, now, delivered = list[Asked](), 0.0, 0
    while (now := now + chance.expovariate(offered(now))) < seconds:
        while begins and begins[0] <= now:
            begins.popleft()
        turn = len(asked) % gates
        gate = routers[turn]
        if now - looked[turn] >= LOOK_SECONDS:
            looked[turn] = now
            gate.look(BEGIN + now, delivered, len(begins))
        if not gate.admits(BEGIN + now + timeout):
            asked.append(Asked(now, None))
            continue
        begin = max(min(free), now)
        while not served(begin):
            begin += 0.5
        free[free.index(min(free))] = begin + chance.expovariate(served(begin))
        begins.append(begin)
        delivered += 1
        asked.append(Asked(now, begin - now))
    return asked


def between(asked: list[Asked], begin: float, end: float) -> tuple[int, list[float]]:
    """Return how many requests of a time came, and the waits of those that were let through."""
    came = [each for each in asked if begin <= each.at < end]
    return len(came), [each.waited for each in came if each.waited is not None]


def assert_all_pass(asked: list[Asked], begin: float, end: float, least: float = 1) -> None:
    came, waits = between(asked, begin, end)
    assert came
    assert len(waits) >= least * came


@pytest.mark.parametrize("gates", [1, 3])
@pytest.mark.parametrize(("capacity", "timeout"), [(100, 5), (500, 30)])
def test_of_twice_what_can_be_served_one_half_is_let_through_and_served_in_time(
    capacity: float, timeout: float, gates: int
) -> None:
    asked = simulate(lambda _: capacity, lambda now: capacity * (2 if now < 80 else 0.5), timeout, 120, gates=gates)
    _, waits = between(asked, 40, 80)
    assert 0.9 < len(waits) / (40 * capacity) < 1.1, "the worker has enough to do, and no more"
    assert max(waits) > 0.5 * timeout
    late = [waited for waited in waits if waited > timeout]
    assert len(late) <= 0.02 * len(waits)
    assert_all_pass(asked, 95, 120)


@pytest.mark.parametrize(
    ("served", "offered", "timeout", "workers"),
    [(100, 90, 1, 1), (0.5, 4.5, 10, 10), (1_000, 1, 1, 1), (0.1, 0.05, 60, 1)],
    ids=["busy", "slow workers", "nearly idle", "one slow worker"],
)
def test_what_can_be_served_is_let_through(served: float, offered: float, timeout: float, workers: int) -> None:
    asked = simulate(lambda _: served, lambda _: offered, timeout, 20_000 / max(offered, 20), workers)
    assert_all_pass(asked, 0, inf, least=0.99)


def test_a_burst_to_lists_that_were_idle_is_let_through() -> None:
    """What little came before says nothing of how fast the worker is."""
    asked = simulate(lambda _: 100, lambda now: 300 if 60 < now < 61 else 2, 5, 90)
    assert_all_pass(asked, 0, 90)


def test_a_worker_that_becomes_slow_gets_less_and_one_that_recovers_all() -> None:
    asked = simulate(lambda now: 10 if 20 < now < 80 else 100, lambda _: 50, 5, 120)
    assert_all_pass(asked, 0, 20)
    _, waits = between(asked, 45, 80)
    assert 7 < len(waits) / 35 < 13
    assert sum(waited > 5 for waited in waits) <= 0.1 * len(waits)
    assert_all_pass(asked, 85, 120)


def test_a_list_that_stands_still_gets_nothing_and_all_once_it_moves() -> None:
    asked = simulate(lambda now: 0 if 20 < now < 80 else 100, lambda _: 50, 5, 120)
    assert not between(asked, 26, 80)[1]
    assert_all_pass(asked, 85, 120)


def test_a_list_that_nobody_ever_served_is_broken_once_it_stood_still_for_longer_than_a_deadline() -> None:
    asked = simulate(lambda now: 0 if now < 100 else 50, lambda _: 20, 30, 160)
    assert_all_pass(asked, 0, 20)
    assert not between(asked, 30, 100)[1]
    assert_all_pass(asked, 130, 160)


def test_requests_without_a_deadline_pass_and_lengthen_the_wait_of_others() -> None:
    gate = Gate(["a"])
    for second in range(WARM + 2):
        gate.look(BEGIN + second, 10 + second, 10)  # one leaves each second
    now = BEGIN + WARM + 1
    assert gate.admits(now + 20)
    assert all(gate.admits(inf) for _ in range(100))
    assert not gate.admits(now + 20)
    assert 110 < gate.retry_after(now) < 160


def test_messages_that_go_back_and_counters_that_begin_anew_break_nothing() -> None:
    gate = Gate(["a", "b"])
    begins = [(500, 500), (600, 100), (700, 700), (800, 300), *((number, 2) for number in range(3, 40))]
    for second, (delivered, length) in enumerate(begins):
        gate.look(BEGIN + second, delivered, length)
        assert gate.turn < BEGIN + second + 10
        assert gate.retry_after(BEGIN + second) >= 1


def test_nobody_is_told_to_come_back_tomorrow() -> None:
    gate = Gate(["a"])
    for hour in range(24):
        gate.look(BEGIN + 3_600 * hour, 5, 5)
    assert not gate.admits(BEGIN + 24 * 3_600)
    assert gate.retry_after(BEGIN + 23 * 3_600) == MAX_RETRY_AFTER


def test_rules_that_share_a_list_share_what_is_measured() -> None:
    rules: list[dict[str, Any]] = [
        {"prefix": "/a", "to": "a", "breaker": "refuse", "waits": ["w1", "w2"]},
        {"prefix": "/b", "to": "b", "breaker": "cached"},
        {"prefix": "/c", "to": "c", "breaker": "accept", "waits": "w3"},
        {"prefix": "/d", "to": "d", "breaker": "refuse", "waits": ["w2", "w3"]},
        {"prefix": "/e", "to": "e"},
    ]
    gates = gates_of([Rule.parse(rule) for rule in rules])
    shared = ["a", "c", "d", "w1", "w2", "w3"]
    assert [gates[name].lists for name in shared] == [shared] * 6
    assert gates["b"].lists == ["b"]
    assert len({*gates.values()}) == 2
    assert "e" not in gates
