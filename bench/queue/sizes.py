"""Figures of hqueue by how much waits: in many queues, and in one."""

import random
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from bench.figures import Figure
from bench.queue.running import hqueue
from bench.side import Side
from bench.testbed import Testbed
from penstock.testing.server import EmbeddedServer

FLAT: Final = 1.3


def fetching(bed: Testbed, rounds: int, fetches: int, most: int) -> list[Figure]:
    """Measure the p50 of a fetch with many queues, and with many tasks in one, beside that of one queue, in turns.

    Each has a server and a service of its own. They take turns, so that a slow moment of the machine meets all.
    """
    waiting = {
        "1 queue": (1, (rounds + 1) * fetches),
        f"{most // 100:,} queues": (most // 100, 1),
        f"{most // 10:,} queues": (most // 10, 1),
        f"{most:,} tasks waiting in 1 queue": (1, most),
    }
    times: dict[str, list[float]] = {name: [] for name in waiting}
    with ExitStack() as stack:
        clients, names = dict[str, Side](), dict[str, list[str]]()
        for name, (queues, tasks) in waiting.items():
            server = stack.enter_context(EmbeddedServer())
            _, clients[name] = stack.enter_context(hqueue(bed, server.url))
            names[name] = [f"bench{number}" for number in range(queues)]
            clients[name].order("fill", names[name], tasks, 32)
            random.Random(1).shuffle(names[name])
        for turn in range(rounds + 1):
            for name, each in clients.items():
                chosen = names[name][turn * fetches : (turn + 1) * fetches] or names[name]
                times[name].append(each.order("work", chosen, 1, fetches, 1)["fetch p50"])
    one, *others = times
    return [
        Figure(
            f"hqueue, {name}: p50 of a fetch / {one}",
            "x",
            [ours / other for ours, other in zip(times[name][1:], times[one][1:], strict=True)],
            FLAT,
            note=f"{_microseconds(times[name])} against {_microseconds(times[one])}",
        )
        for name in others
    ]


def _microseconds(times: list[float]) -> str:
    return f"{statistics.median(times[1:]) * 1e6:,.0f} us"


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of sizes."""
    rounds, fetches, most = (5, 100, 100_000) if quick else (21, 100, 1_000_000)
    return [lambda bed: fetching(bed, rounds, fetches, most)]
