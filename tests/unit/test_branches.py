"""Copies that are owed to a list, by the counters of what fills it, and which messages are missing or too many."""

import pytest

from penstock.accounting.fanout import Branch, Pattern, compare_branches, given_copies
from penstock.accounting.snapshot import FANOUT_METRICS, FanoutSnapshot

EVEN, FEWER, MORE = (0, 0), (-1, 0), (1, 0)


def fanout(**counts: dict[str, int]) -> FanoutSnapshot:
    return FanoutSnapshot("demo", ("a", "b"), {name: {} for name in FANOUT_METRICS} | counts)


def test_a_message_that_mbalance_took_back_is_owed_to_the_list_no_more() -> None:
    balancer = fanout(delivered={"a": 10, "b": 5, "count": 15}, rebalanced={"a": 4, "count": 4})
    assert [Branch(name, [], [balancer], waiting).over for name, waiting in (("a", 6), ("b", 5))] == [0, 0]
    assert Branch("a", [], [balancer], 5).over == -1


@pytest.mark.parametrize(
    ("patterns", "sums", "given"),
    [
        ({(1, 0): 1}, (EVEN, FEWER), {(1, 0): 1}),
        ({(1, 0): 1}, (MORE, EVEN), {(1, 0): 0}),
        ({(3, 2): 1}, (MORE, EVEN), {(3, 2): 2}),
        ({(1, 0): 1, (0, 1): 1}, (FEWER, FEWER), {(1, 0): 1, (0, 1): 1}),
        ({(1, 0): 1, (1, 2): 1}, (EVEN, EVEN), {(1, 0): 1, (1, 2): 1}),
        ({(0, 1): 1, (1, 2): 1}, (FEWER, MORE), {(0, 1): 1, (1, 2): 1}),
        ({(1, 2, 1): 1}, (EVEN, MORE, EVEN), {(1, 2, 1): 1}),
        ({(1, 0, 0): 1}, (EVEN, FEWER, FEWER), {(1, 0, 0): 1}),
        ({(2, 1): 2}, ((2, 0), EVEN), {(2, 1): 1}),
        ({(1, 0): 250_001, (2, 1): 3}, (EVEN, (-1, 250_003)), {(1, 0): 1, (2, 1): 2}),
        ({(1, 0): 1}, (FEWER, (-2, 0)), {(1, 0): 1}),
        (
            {(number + 1, number): 1 for number in range(1, 20)},
            (EVEN, (0, 19)),
            {(n + 1, n): n + 1 for n in range(1, 20)},
        ),
        ({(2, 1): 2}, (MORE, FEWER), {(2, 1): None}),
        ({(1, 0): 1, (0, 1): 1}, (EVEN, EVEN), {(1, 0): None, (0, 1): None}),
        ({(3, 2): 1}, (EVEN, EVEN), {(3, 2): None}),
        ({}, (EVEN, FEWER), {}),
    ],
)
def test_sums_say_how_many_copies_were_given_or_do_not_tell(
    patterns: dict[Pattern, int], sums: tuple[tuple[int, int], ...], given: dict[Pattern, int | None]
) -> None:
    assert given_copies(patterns, sums) == given


def test_messages_that_the_sums_do_not_explain_are_reported_with_their_copies() -> None:
    filled = fanout(delivered={"a": 3, "b": 3})
    branches = [Branch("a", [], [filled], 4), Branch("b", [], [filled], 2)]
    found = compare_branches(branches, dict.fromkeys("stuvxyz", (2, 1)))
    assert [(each.kind, each.xid, "(copies:" in each.words) for each in found] == [
        ("unclear", x, True) for x in "stuvxyz"
    ]
    assert [branch.over - branch.extra for branch in branches] == [1, -1], "the numbers are reported all the same"
