"""What a test expects of a measured time, however slow the machine: anything between two readings of the clock."""

from dataclasses import dataclass
from typing import Final

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
