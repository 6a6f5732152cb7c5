"""What has arrived, compared with what was sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from compose.bus.keyspace import KEYSPACE, in_queues
from compose.bus.names import ARRIVED, HANDLED, PAUSES
from compose.bus.statistics import Statistics
from compose.comparison import Comparison
from compose.ending import Ending
from penstock.encoding import decoded

Month = Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    producer: str
    readings: Comparison
    days: Comparison
    months: dict[str, Month]
    """What the service answered."""
    expected: dict[str, Month]
    pauses: int
    left: int
    """Messages in the queues that were not taken, or not acknowledged."""
    seconds: float
    ending: Ending

    @property
    def differences(self) -> list[str]:
        """Return a line for everything that is not as promised."""
        found = [*self.readings.differences(), *self.days.faults(), *self.ending.differences()]
        found += [f"month {month}: {self.months.get(month)}" for month in self.expected if self._differs(month)]
        return found + ([f"the queues: {self.left:,} messages left behind"] if self.left else [])

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            "producer": self.producer,
            "readings": self.readings.figures(),
            "days": self.days.figures(),
            "months": self.months,
            "pauses": self.pauses,
            "seconds": self.seconds,
            "differences": self.differences,
        }

    def _differs(self, month: str) -> bool:
        return self.months.get(month) != self.expected[month]


async def read_outcome(
    redis: "Redis",
    site_two: "Redis",
    rows: Sequence[bytes],
    months: dict[str, Month],
    statuses: Mapping[str, int],
    *,
    producer: str,
    seconds: float,
) -> Outcome:
    """Compare what the servers have with ``rows``."""
    handled = [bytes(row) for row in reversed(await redis.lrange(HANDLED, 0, -1))]  # type: ignore[arg-type]  # bytes
    arrived = [f"{decoded(day)},{decoded(mean)}".encode() for day, mean in (await site_two.hgetall(ARRIVED)).items()]
    statistics = Statistics()
    days = [day for place, row in enumerate(rows, start=1) if (day := statistics.add(place, row))]
    return Outcome(
        producer,
        Comparison.compare("readings", rows, handled),
        Comparison.compare("daily means", [f"{day},{mean}".encode() for day, mean in days], arrived),
        months,
        {month: statistics.answer(month) for month in statistics.months},
        int(await redis.get(PAUSES) or 0),
        await in_queues(redis),
        seconds,
        await Ending.read(redis, KEYSPACE, statuses),
    )
