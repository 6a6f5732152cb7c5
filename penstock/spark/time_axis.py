"""Time axis of a report: an interval divided into at most ``MAX_BUCKETS`` equal buckets."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

MAX_BUCKETS: Final = 120
"""As many as a plot can show."""
DAY: Final = 86_400
STEPS: Final = (1, 2, 5, 10, 15, 30, *(60 * n for n in (1, 2, 5, 10, 15, 30)), *(3_600 * n for n in (1, 2, 3, 6, 12)))
"""Sizes of a bucket (s) below a day; larger buckets are whole days."""
MAX_TICKS: Final = 8
CALENDAR: Final = (
    *(((1, 6, 11, 16, 21, 26), 1, 1), ((1, 11, 21), 1, 1), ((1, 16), 1, 1), ((1,), 1, 1), ((1,), 3, 1), ((1,), 6, 1)),
    *(((1,), 12, years) for years in (1, 2, 5, 10, 20, 50)),
)
"""Rules for ticks more than two days apart: days of the month, every how many months, every how many years."""


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

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Return at most ``MAX_TICKS`` round moments: the share of the axis before each (0 to 1), and its label."""
        length = self.step * self.count
        return [((at - self.start) / length, text) for at, text in _round_moments(self.start, self.start + length)]

    def bucket_of(self, column: str) -> "Column":
        """Return the index of the bucket that the timestamp in ``column`` is in, from 0."""
        from pyspark.sql import functions as F

        return F.floor((F.unix_seconds(column) - self.start) / self.step)


def _round_moments(start: int, end: int) -> list[tuple[int, str]]:
    """Return the moments with the smallest distance that are not too many, with their labels."""
    for step in (*STEPS, DAY, 2 * DAY):
        found = range(math.ceil(start / step) * step, end + 1, step)
        if len(found) <= MAX_TICKS:
            return [(at, _label(at, step)) for at in found]
    days = list(_days(start, end))
    for of_month, months, years in CALENDAR:
        chosen = [
            day for day in days if day.day in of_month and (day.month - 1) % months == 0 and day.year % years == 0
        ]
        if len(chosen) <= MAX_TICKS:
            break
    by_month = of_month == (1,)
    return [(int(day.timestamp()), _label_of_month(day) if by_month else _label_of_day(day)) for day in chosen]


def _days(start: int, end: int) -> Iterator[datetime]:
    """Yield the beginnings of the days that a tick may be at, from ``start`` to ``end``."""
    first, last = (datetime.fromtimestamp(moment, UTC) for moment in (start, end))
    for month in range(12 * first.year + first.month - 1, 12 * last.year + last.month):
        for day in CALENDAR[0][0]:
            found = datetime(month // 12, month % 12 + 1, day, tzinfo=UTC)
            if start <= found.timestamp() <= end:
                yield found


def _label(at: int, step: int) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    if at % DAY == 0:
        return _label_of_day(moment)
    return f"{moment:%H:%M:%S}" if step < 60 else f"{moment:%H:%M}"


def _label_of_day(moment: datetime) -> str:
    return f"{moment.day} {moment:%b}"


def _label_of_month(moment: datetime) -> str:
    return f"{moment.year}" if moment.month == 1 else f"{moment:%b}"
