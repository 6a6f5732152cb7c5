"""Figures of mbalance: messages a second beside mpush to one list, and the slowest waits beside the shortest list."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from bench.figures import Figure
from bench.testbed import NAMESPACE, Testbed
from penstock.base.keys import Keys
from tests.support.harness import Service, until
from tests.support.simulated_balance import UNLIKE, simulate

BALANCER: Final = Keys("bench:mbalance")
SOURCE: Final = "bench:in:balance"
LISTS: Final = {4: 0.6, 64: 0.3}
"""Lists to choose from, and the least share of what mpush moves to one list."""


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    rounds, messages = (3, 50_000) if quick else (7, 500_000)
    found = [
        partial(backlog, lists=lists, limit=limit, rounds=rounds, messages=messages) for lists, limit in LISTS.items()
    ]
    return [*found, partial(slowest, rounds=rounds, arrivals=messages // 10)]


def backlog(bed: Testbed, lists: int, limit: float, rounds: int, messages: int) -> Figure:
    """Measure messages a second over ``lists`` lists, as a ratio to mpush to one list, in pairs."""
    bed.seed(messages, 32)
    outs = [f"bench:balanced{place}" for place in range(lists)]
    base = {"in": SOURCE, "pending": f"{SOURCE}:pending", "out": outs, "redis_namespace": BALANCER.namespace}
    ratios, ours, theirs = [], [], []
    with bed.mpush(1), Service("mbalance", bed.log, redis=bed.url, **base) as balancer:
        until(lambda: bed.blocked_clients() == 2)
        for turn in range(rounds + 1):
            balanced = _seconds(bed, BALANCER, messages, SOURCE)
            bed.redis.unlink(*outs)
            copied = _seconds(bed, Keys(NAMESPACE), messages)
            bed.clear_subscribers(1)
            if turn:  # the first pair warms up
                ratios.append(copied / balanced)
                ours.append(messages / balanced)
                theirs.append(messages / copied)
        balancer.stop()
    name = f"backlog of {messages:,} x 32 B over {lists} lists, mbalance / mpush to one list"
    note = f"{statistics.median(ours) / 1000:,.0f} k/s against {statistics.median(theirs) / 1000:,.0f} k/s"
    return Figure(name, "x", ratios, limit, at_least=True, note=note)


def _seconds(bed: Testbed, keys: Keys, messages: int, *source: str) -> float:
    """Return the seconds from the appearance of a backlog until the service of ``keys`` has settled all of it."""
    metric = keys.metric("settled")
    before = int(bed.redis.hget(metric, "count") or 0)
    begin = bed.publish_backlog(*source)
    until(lambda: int(bed.redis.hget(metric, "count") or 0) == before + messages, every=0.002)
    return time.perf_counter() - begin


def slowest(bed: Testbed, rounds: int, arrivals: int) -> Figure:
    """Simulate lists with unlike workers on a virtual clock: the 99th percentile, as a ratio to the shortest list's."""
    ratios, pairs = [], []
    for seed in range(1, rounds + 1):
        pair = [
            simulate(bed.redis, policy, arrivals=arrivals, seeds=[seed]).p99 for policy in ("expectedWait", "length")
        ]
        ratios.append(pair[0] / pair[1])
        pairs.append(pair)
    ours, theirs = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
    name = f"simulated: p99 of {arrivals:,} messages, workers of {UNLIKE} a second, load 0.9, expectedWait / length"
    return Figure(name, "x", ratios, 0.5, note=f"{ours:,.0f} ms against {theirs:,.0f} ms")
