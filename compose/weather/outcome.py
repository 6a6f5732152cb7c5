"""Outcome of a run of the weather composition, read from the server after its end."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

from redis.asyncio import Redis

from compose.comparison import Comparison
from compose.ending import Ending
from compose.weather.day import Day
from compose.weather.keyspace import BRANCHES, KEYS, KEYSPACE, REPORTS, STORMS
from penstock.accounting.audit import Audit, audit
from penstock.metrics import read_metrics


@dataclass(frozen=True)
class Outcome:
    """Result of a demo; ``differences`` has a line for everything that is not as promised."""

    comparisons: list[Comparison]
    audit: Audit | None
    metrics: dict[str, dict[str, str]]
    ending: Ending

    @property
    def differences(self) -> list[str]:
        found = [line for comparison in self.comparisons for line in comparison.differences()]
        found += self.ending.differences()
        return found + self._miscounts()

    def _miscounts(self) -> list[str]:
        if self.audit is None:
            return [f"{KEYS.namespace}: nothing to audit, no service has counted anything"]
        counted = {branch.name: branch.delivered for branch in self.audit.legs}
        return self.audit.problems + [
            f"{comparison.name}: {counted.get(comparison.name, 0)} of {comparison.sent} counted as delivered"
            for comparison in self.comparisons
            if comparison.name in BRANCHES and counted.get(comparison.name, 0) != comparison.sent
        ]

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            "holds": not self.differences,
            "differences": self.differences,
            "lists": {comparison.name: comparison.figures() for comparison in self.comparisons},
            "audit": self.audit and asdict(self.audit),
            "metrics": self.metrics,
            "exitStatus": self.ending.statuses,
        }


async def read_outcome(redis: "Redis", rows: Sequence[bytes], statuses: Mapping[str, int]) -> Outcome:
    """Compare what is on the server with what ``rows``, oldest first, must lead to."""
    days = [Day.read(row) for row in rows]
    wanted = {name: (handled, list(rows)) for name, handled in BRANCHES.items()} | {
        STORMS: (STORMS, [day.alarm().encode() for day in days if day.storm]),
        REPORTS: (REPORTS, [day.report().encode() for day in days]),
    }
    return Outcome(
        [Comparison.compare(name, sent, await _content(redis, key)) for name, (key, sent) in wanted.items()],
        await audit(redis, KEYS),
        await read_metrics(redis, KEYS),
        await Ending.read(redis, KEYSPACE, statuses),
    )


async def _content(redis: "Redis", key: str) -> list[bytes]:
    """Return the messages of a list, oldest first."""
    return cast(list[bytes], await redis.lrange(key, 0, -1))[::-1]
