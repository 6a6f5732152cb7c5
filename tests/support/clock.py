"""Measured times, expected between two readings of the clock however slow the machine; services with a wrong clock."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from tests.support.harness import ROOT, Service

ROUNDING: Final = 0.002
"""Seconds that a time may be off because it was rounded to milliseconds."""


@dataclass(frozen=True, eq=False)
class Span:
    """A time of which only the bounds are known; it equals every number between them.

    A moment is ``Span(began, await now(redis))``; an age of 65 s or more is ``65 + Span(0, await now(redis) - began)``;
    a time left of 100 s or less is ``100 - Span(0, await now(redis) - began)``.
    """

    low: float
    high: float

    def __add__(self, seconds: float) -> "Span":
        return Span(self.low + seconds, self.high + seconds)

    __radd__ = __add__

    def __sub__(self, seconds: float) -> "Span":
        return self + -seconds

    def __rsub__(self, seconds: float) -> "Span":
        return Span(seconds - self.high, seconds - self.low)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self.low - ROUNDING <= other <= self.high + ROUNDING

    __hash__ = None  # type: ignore[assignment]


class Skewed(Service):
    """Service on a host whose clock is ``skew`` seconds off."""

    def __init__(self, name: str, log: Path, skew: int, **settings: object) -> None:
        super().__init__(name, log, **settings)
        path = f"{Path(__file__).parent / 'skewed'}:{ROOT}"
        self._environment |= {"PYTHONPATH": path, "CLOCK_SKEW": str(skew)}

    def clock(self) -> float:
        """Return the time of its first log line by its own clock (s since the epoch)."""
        return datetime.fromisoformat(json.loads(self.log_text().splitlines()[0])["timestamp"]).timestamp()
