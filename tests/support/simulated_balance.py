"""Waits of messages in lists of unlike workers, simulated on a virtual clock with the decisions of mbalance."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis import Redis

from penstock.core.script import Script

_simulation: Final = Script.read(Path(__file__).with_suffix(".lua"))
UNLIKE: Final = (100, 100, 25, 10)
"""Messages a second of workers that differ as in the figure of issue 16."""
SEEDS: Final = (1, 2, 3)


@dataclass(frozen=True)
class Waits:
    """Seconds from arrival to end, medians of several simulations, and the messages of each list in the last one."""

    p50: float
    p99: float
    messages: list[int]


def simulate(
    redis: "Redis",
    policy: str,
    rates: Sequence[float] = UNLIKE,
    load: float = 0.9,
    arrivals: int = 20_000,
    *,
    seeds: Sequence[int] = SEEDS,
    whole: bool = True,
    slowed: float = 1,
) -> Waits:
    """Simulate lists with one worker each; see the header of the script."""
    found = []
    for seed in seeds:
        named = {"seed": seed, "arrivals": arrivals, "load": load, "whole": int(whole), "slowed": slowed}
        found.append(redis.execute_command(*_simulation.by_source(policy=policy, rates=[*rates], **named)))
    half, most = (statistics.median(row[place] for row in found) / 1e6 for place in (0, 1))
    return Waits(half, most, found[-1][2])
