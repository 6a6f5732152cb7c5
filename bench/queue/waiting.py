"""Figures of hqueue with many workers that wait: what they cost while nothing comes, and how soon one has a task."""

import time
from collections.abc import Callable
from typing import Final

from bench.figures import Figure, commands_a_second
from bench.queue.clients import WAIT_SECONDS
from bench.queue.running import hqueue
from bench.side import side
from bench.testbed import PYTHON, Testbed

QUEUE: Final = "bench"
WORKERS: Final = 1_000
SETTLE_SECONDS: Final = 4
"""Time in which all workers have begun to wait."""
IDLE_SECONDS: Final = 8
"""Time after it in which none of their polls ends."""
INTERVAL_SECONDS: Final = 0.01


def waiting(bed: Testbed, rounds: int, tasks: int) -> list[Figure]:
    """Measure the commands of idle workers, between and with their polls, and the time from adding to fetching."""
    idle, polls, p50, p99 = list[float](), list[float](), list[float](), list[float]()
    with hqueue(bed) as (service, adder):
        for turn in range(rounds):
            with side(*PYTHON, "bench.queue.clients", str(service.port)) as workers:
                workers.send("poll", QUEUE, WORKERS, tasks)
                time.sleep(SETTLE_SECONDS)
                idle.append(commands_a_second(bed, IDLE_SECONDS))
                if not turn:
                    polls.append(commands_a_second(bed, WAIT_SECONDS))
                adder.order("add_now_and_then", QUEUE, tasks, INTERVAL_SECONDS)
                found = workers.answer()
                p50.append(found["p50"] * 1000)
                p99.append(found["p99"] * 1000)
    name = f"hqueue, {WORKERS:,} workers wait"
    again = f"{polls[0]:,.0f} with their polls, which begin again every {WAIT_SECONDS} s"
    return [
        Figure(f"{name}: commands a second, those inside scripts included", "/s", idle, 50, note=again),
        Figure(f"{name}: from the request that adds a task to its answer, p50", "ms", p50, 50),
        Figure(f"{name}: from the request that adds a task to its answer, p99", "ms", p99, 50),
    ]


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of waiting."""
    rounds, tasks = (2, 200) if quick else (3, 300)
    return [lambda bed: waiting(bed, rounds, tasks)]
