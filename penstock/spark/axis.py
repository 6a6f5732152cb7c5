"""Time in buckets, so many of them that a page can show them all."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

MOST: Final = 120
"""Buckets of time, at most."""
DAY: Final = 86_400
STEPS: Final = (1, 2, 5, 10, 15, 30, *(60 * n for n in (1, 2, 5, 10, 15, 30)), *(3_600 * n for n in (1, 2, 3, 6, 12)))
"""Sizes of a bucket (s); beyond them whole days."""


@dataclass(frozen=True)
class Axis:
    """``count`` buckets of time, ``step`` seconds each, from ``start`` on (s since the epoch)."""

    start: int
    step: int
    count: int

    @classmethod
    def over(cls, first: float, last: float) -> "Axis":
        """The finest that has both moments and not too many buckets."""
        days = math.ceil((last - first) / DAY / (MOST - 1)) or 1
        for step in (*STEPS, *(DAY * n for n in range(1, days + 1))):
            grid = min(step, DAY)
            start = math.floor(first / grid) * grid
            count = math.floor((last - start) / step) + 1
            if count <= MOST:
                break
        return cls(start, step, count)

    @property
    def starts(self) -> list[int]:
        return [self.start + place * self.step for place in range(self.count)]

    def place(self) -> "Column":
        """Of the bucket of ``at``, counted from 0."""
        from pyspark.sql import functions as F

        return F.floor((F.unix_seconds("at") - self.start) / self.step)
