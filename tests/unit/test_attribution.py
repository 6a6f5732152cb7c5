"""Attribution of wrong copies to branches of a fan-out, if the sums decide it."""

import pytest

from penstock.accounting.attribution import Balance, Pattern, expected_copies

EVEN = Balance(surplus=0, excused=0)
FEWER = Balance(surplus=-1, excused=0)
MORE = Balance(surplus=1, excused=0)


@pytest.mark.parametrize(
    ("patterns", "lists", "truth"),
    [
        ({(1, 0): 1}, (EVEN, FEWER), {(1, 0): 1}),
        ({(1, 0): 1}, (MORE, EVEN), {(1, 0): 0}),
        ({(3, 2): 1}, (EVEN, FEWER), {(3, 2): 3}),
        ({(3, 2): 1}, (MORE, EVEN), {(3, 2): 2}),
        ({(1, 0): 1, (0, 1): 1}, (FEWER, FEWER), {(1, 0): 1, (0, 1): 1}),
        ({(1, 0): 1, (1, 2): 1}, (EVEN, EVEN), {(1, 0): 1, (1, 2): 1}),
        ({(1, 1, 0): 1}, (EVEN, EVEN, FEWER), {(1, 1, 0): 1}),
        ({(1, 2, 1): 1}, (EVEN, MORE, EVEN), {(1, 2, 1): 1}),
        ({(1, 0, 0): 1}, (EVEN, FEWER, FEWER), {(1, 0, 0): 1}),
        ({(1, 0, 0): 1}, (MORE, EVEN, EVEN), {(1, 0, 0): 0}),
        ({(2, 1): 2}, (Balance(2, 0), EVEN), {(2, 1): 1}),
        ({}, (EVEN, FEWER), {}),
    ],
)
def test_sums_that_decide_say_who_is_wrong(
    patterns: dict[Pattern, int], lists: tuple[Balance, ...], truth: dict[Pattern, int]
) -> None:
    assert expected_copies(patterns, lists) == truth


@pytest.mark.parametrize(
    ("patterns", "lists"),
    [
        ({(2, 1): 2}, (MORE, FEWER)),
        ({(1, 0): 1, (0, 1): 1}, (EVEN, EVEN)),
        ({(3, 2): 1}, (EVEN, EVEN)),
        ({(1, 0): 1}, (EVEN, MORE)),
    ],
    ids=["one of each", "one for another", "nobody's fault", "impossible"],
)
def test_sums_that_do_not_decide_yield_none(patterns: dict[Pattern, int], lists: tuple[Balance, ...]) -> None:
    assert expected_copies(patterns, lists) == dict.fromkeys(patterns)


def test_what_is_accounted_for_without_names_may_be_missing_from_a_list() -> None:
    waiting = Balance(surplus=-1, excused=250_003)
    assert expected_copies({(1, 0): 250_001, (2, 1): 3}, (EVEN, waiting)) == {(1, 0): 1, (2, 1): 2}


def test_messages_that_no_list_has_had_do_not_speak_against_the_others() -> None:
    assert expected_copies({(1, 0): 1}, (FEWER, Balance(-2, 0))) == {(1, 0): 1}
