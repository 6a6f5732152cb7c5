"""Vertical scales of plots, with round ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

INTERVALS: Final = 4
"""Maximum number of intervals between ticks, apart from rounding at both ends."""
UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True)
class Scale:
    """The range of a plot, from its first tick to its last one."""

    ticks: tuple[float, ...]
    logarithmic: bool = False

    def depth(self, value: float) -> float:
        """Return the distance of ``value`` from the top, in per cent of the height."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return round(100 * (high - value) / (high - low), 2)

    @property
    def labels(self) -> list[str]:
        """Return a text for each tick; the ticks of a linear scale have the unit of the greatest."""
        return [label(tick, tick if self.logarithmic else self.ticks[-1]) for tick in self.ticks]


def linear(values: Iterable[float], *, whole: bool = False, room: float = 1.0) -> Scale:
    """Return the scale from 0, or below, to the greatest of ``values``, times ``room``; 0 to 1 if all are 0."""
    found = [0.0, *values]
    low, high = min(found), max(found) * room
    if low == high:
        return Scale((0, 1))
    step = round_step((high - low) / INTERVALS)
    if whole:
        step = max(1, step)
    first, last = math.floor(low / step), math.ceil(high / step)
    return Scale(tuple(place * step for place in range(first, last + 1)))


def logarithmic(low: float, high: float) -> Scale:
    """Return a scale with ticks at 1, 2 and 5 of each power of ten, or only at powers of ten if these are many."""
    factors = (1, 2, 5) if high / low <= 1_000 else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    candidates = [float(f"{factor}e{power}") for power in powers for factor in factors]
    first = max(place for place, tick in enumerate(candidates) if tick <= low)
    last = next(place for place, tick in enumerate(candidates) if tick >= high)
    return Scale(tuple(candidates[first : last + 1]), logarithmic=True)


def round_step(least: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is not below ``least``."""
    power = math.floor(math.log10(least))
    return next(step for factor in (1, 2, 5, 10) if (step := float(f"{factor}e{power}")) >= least)


def label(value: float, greatest: float) -> str:
    """Return ``value`` without an exponent, in the unit for ``greatest``: ``0.002``, ``20,000``, ``1.5 M``."""
    size, unit = next((each for each in UNITS if greatest >= each[0]), (1.0, ""))
    text = f"{value / size:,.9f}".rstrip("0").rstrip(".")
    return f"{text} {unit}" if unit and value else text
