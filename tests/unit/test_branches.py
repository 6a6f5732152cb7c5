"""Copies that are owed to a list, by the counters of what fills it."""

from penstock.accounting.fanout import Branch
from penstock.accounting.snapshot import FANOUT_METRICS, FanoutSnapshot


def test_a_message_that_mbalance_took_back_is_owed_to_the_list_no_more() -> None:
    counters: dict[str, dict[str, int]] = {name: {} for name in FANOUT_METRICS}
    counters |= {"delivered": {"a": 10, "b": 5, "count": 15}, "rebalanced": {"a": 4, "count": 4}}
    balancer = FanoutSnapshot("demo", ("a", "b"), counters)
    assert [Branch(name, [], [balancer], waiting).over for name, waiting in (("a", 6), ("b", 5))] == [0, 0]
    assert Branch("a", [], [balancer], 5).over == -1
