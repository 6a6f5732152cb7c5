"""What a run of the composition came to: read from the server when all is quiet, and judged."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

from redis.asyncio import Redis

from compose.passage import Passage
from compose.weather.day import Day
from compose.weather.keyspace import KEYS, KEYSPACE, LEGS, REPORTS, STORMS
from penstock.accounting.audit import Audit, audit
from penstock.metrics import read_metrics


@dataclass(frozen=True)
class Outcome:
    """All that the demo tells; ``differences`` says in words what is not as promised."""

    passages: list[Passage]
    audit: Audit | None
    metrics: dict[str, dict[str, str]]
    statuses: dict[str, int]
    """Exit status of each process by its name in the Procfile."""
    left: dict[str, int]
    registered: list[str]
    """Instances that are gone and left their registration behind."""

    @property
    def differences(self) -> list[str]:
        told = [line for passage in self.passages for line in passage.differences()]
        told += [f"{name}: {length} left behind" for name, length in self.left.items()]
        told += [f"{key}: still registered" for key in self.registered]
        told += [f"{name}: exit status {status}" for name, status in self.statuses.items() if status]
        return told + self._miscounts()

    def _miscounts(self) -> list[str]:
        if self.audit is None:
            return [f"{KEYS.namespace}: nothing to audit, no service has counted anything"]
        counted = {leg.name: leg.delivered for leg in self.audit.legs}
        return self.audit.problems + [
            f"{passage.name}: {counted.get(passage.name, 0)} of {passage.sent} counted as delivered"
            for passage in self.passages
            if passage.name in LEGS and counted.get(passage.name, 0) != passage.sent
        ]

    def figures(self) -> dict[str, object]:
        """For JSON."""
        return {
            "holds": not self.differences,
            "differences": self.differences,
            "lists": {passage.name: passage.figures() for passage in self.passages},
            "audit": self.audit and asdict(self.audit),
            "metrics": self.metrics,
            "exitStatus": self.statuses,
        }


async def read_outcome(redis: "Redis", rows: Sequence[bytes], statuses: Mapping[str, int]) -> Outcome:
    """Compare what lies on the server with what ``rows``, oldest first, must have led to."""
    days = [Day.read(row) for row in rows]
    owed = {name: (handled, list(rows)) for name, handled in LEGS.items()} | {
        STORMS: (STORMS, [day.alarm().encode() for day in days if day.storm]),
        REPORTS: (REPORTS, [day.report().encode() for day in days]),
    }
    return Outcome(
        [Passage.compare(name, sent, await _content(redis, key)) for name, (key, sent) in owed.items()],
        await audit(redis, KEYS),
        await read_metrics(redis, KEYS),
        dict(statuses),
        await KEYSPACE.left(redis),
        KEYSPACE.registered(await KEYSPACE.present(redis)),
    )


async def _content(redis: "Redis", key: str) -> list[bytes]:
    """Oldest first, as messages went in."""
    return cast(list[bytes], await redis.lrange(key, 0, -1))[::-1]
