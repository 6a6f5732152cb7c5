"""Counters and response times of a branch."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

from redis.asyncio import Redis

from penstock.encoding import decoded, encoded
from penstock.keys import Keys
from penstock.metrics import read_metrics

FIGURES: Final = {
    "registered": ("registered", "count"),
    "delivered": ("delivered", "count"),
    "failed attempts": ("failed", "count"),
    "timeouts": ("timeout", "count"),
    "retries": ("retry", "count"),
    "done": ("done", "count"),
    "done late": ("done:late", "count"),
    "done unknown": ("done:unknown", "count"),
    "dead": ("dead", "count"),
    "expired": ("expired", "count"),
    "untracked": ("untracked", "count"),
}
"""Figures of a branch, with the metric and field of each."""


SPANS: Final = ("mean", "half at most", "longest")
"""Figures of the response time; the median is as exact as the histogram of the metric."""


@dataclass(frozen=True)
class Counts:
    """Figures of one branch."""

    numbers: dict[str, int]
    seconds: dict[str, float]
    """By ``SPANS``; empty if nothing was done."""

    @classmethod
    async def read(cls, redis: "Redis", keys: Keys) -> Self:
        metrics = await read_metrics(redis, keys)
        timeout = decoded(await redis.hget(encoded(keys.policy), "messageTimeout") or b"0")
        numbers = {name: int(metrics.get(metric, {}).get(field, 0)) for name, (metric, field) in FIGURES.items()}
        return cls(numbers, _seconds(metrics["done"], float(timeout)) if numbers["done"] else {})

    @property
    def spans(self) -> dict[str, str | None]:
        """Return the response times by row of a table."""
        spans = ((name, self.seconds.get(name)) for name in SPANS)
        return {f"response time, {name} (s)": None if span is None else f"{span:.3f}" for name, span in spans}

    def differences(self, branch: str, expected: Mapping[str, int]) -> list[str]:
        """Return a line for each figure that differs; those that ``expected`` lacks should be 0."""
        wanted = dict.fromkeys(FIGURES, 0) | dict(expected)
        wrong = {name: number for name, number in self.numbers.items() if number != wanted[name]}
        return [f"{branch}: {name} is {number:,}, expected {wanted[name]:,}" for name, number in wrong.items()]


def _seconds(done: Mapping[str, str], budget: float) -> dict[str, float]:
    """Return response times. The median is the end of its bucket; bucket N ends at N + 10 per cent of ``budget``."""
    count, longest = int(done["count"]), float(done["max"])
    ends = {(share + 10) / 100 * budget: int(done.get(f"histo{share}", 0)) for share in range(0, 100, 10)}
    halves = (end for end, so_far in zip(ends, accumulate(ends.values()), strict=True) if 2 * so_far >= count)
    return dict(zip(SPANS, (float(done["sum"]) / count, min(next(halves, longest), longest), longest), strict=True))
