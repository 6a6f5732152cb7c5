"""Running statistics of hourly temperatures."""

from dataclasses import dataclass, field


@dataclass
class Statistics:
    """What has been seen up to the message ``last``; temperatures in F."""

    last: int = 0
    count: int = 0
    day: str = ""
    day_count: int = 0
    day_sum: float = 0.0
    months: dict[str, list[float]] = field(default_factory=dict)
    """By month: count, sum, minimum, maximum."""

    def add(self, id: int, row: bytes) -> tuple[str, float] | None:
        """Count ``row``, such as ``2010/01/01 00:00,39.4``; return day and mean once a day is complete.

        A row that is no reading is not counted, and one that was counted before neither.
        """
        if id <= self.last:
            return None
        self.last = id
        time, _, degrees = row.decode(errors="replace").partition(",")
        try:
            value = float(degrees)
        except ValueError:
            return None
        day, month = time[:10], time[:7]
        if day != self.day:
            self.day, self.day_count, self.day_sum = day, 0, 0.0
        self.count, self.day_count, self.day_sum = self.count + 1, self.day_count + 1, self.day_sum + value
        count, total, least, most = self.months.get(month, [0, 0.0, value, value])
        self.months[month] = [count + 1, total + value, min(least, value), max(most, value)]
        return (day, round(self.day_sum / self.day_count, 3)) if time.endswith("23:00") else None

    def answer(self, month: str) -> dict[str, float]:
        """Return what a query for ``month``, such as ``2010/07``, is answered."""
        count, total, least, most = self.months.get(month, [0, 0.0, 0.0, 0.0])
        return {"hours": count, "mean": round(total / max(count, 1), 2), "least": least, "most": most}
