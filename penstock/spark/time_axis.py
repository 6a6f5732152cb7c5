"""Time axis of a report: an interval divided into at most ``MAX_BUCKETS`` equal buckets."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

MAX_BUCKETS: Final = 120
"""As many as a plot can show."""
DAY: Final = 86_400
STEPS: Final = (1, 2, 5, 10, 15, 30, *(60 * n for n in (1, 2, 5, 10, 15, 30)), *(3_600 * n for n in (1, 2, 3, 6, 12)))
"""Sizes of a bucket (s) below a day; larger buckets are whole days."""


@dataclass(frozen=True)
class TimeAxis:
    """``count`` buckets of ``step`` seconds each; the first begins at ``start`` (s since the epoch)."""

    start: int
    step: int
    count: int

    @classmethod
    def over(cls, first: float, last: float) -> "TimeAxis":
        """Return the axis with the smallest buckets that covers ``first`` to ``last``."""
        days = math.ceil((last - first) / DAY / (MAX_BUCKETS - 1)) or 1
        for step in (*STEPS, *(DAY * n for n in range(1, days + 1))):
            grid = min(step, DAY)
            start = math.floor(first / grid) * grid
            count = math.floor((last - start) / step) + 1
            if count <= MAX_BUCKETS:
                break
        return cls(start, step, count)

    @property
    def starts(self) -> list[int]:
        return [self.start + index * self.step for index in range(self.count)]

    def bucket_of(self, column: str) -> "Column":
        """Return the index of the bucket that the timestamp in ``column`` is in, from 0."""
        from pyspark.sql import functions as F

        return F.floor((F.unix_seconds(column) - self.start) / self.step)
