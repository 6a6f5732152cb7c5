"""Outcome of a run of the edge composition, read from all servers and datadirs after its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from compose.comparison import Comparison
from compose.edge.keyspace import KEYSPACE, SITES, arrived
from compose.ending import Ending
from penstock.accounting.audit import audit
from penstock.metrics import read_metrics
from penstock.outbox.store import Counts, Store


@dataclass
class Site:
    """A site while the demo runs: what it publishes, and what was done to it."""

    name: str
    redis: "Redis"
    datadir: Path
    rows: Sequence[bytes]
    off_net: float = 0.0
    """Seconds off the net."""
    waited: int = 0
    """Messages that the others had for it at the end of that time."""
    killed_with: int = 0
    """Messages that it had and not pushed when it was killed; 0 if it was not."""

    def counts(self) -> Counts:
        """Return what its datadir has, also while it runs."""
        store = Store.read(self.datadir)
        try:
            return store.counts()
        finally:
            store.close()

    def waiting_for(self, address: str) -> int:
        """Return how many messages wait here for the site at ``address``."""
        store = Store.read(self.datadir)
        try:
            (count,) = store.connection.execute(
                "SELECT count(*) FROM deliveries JOIN destinations ON id = destination WHERE address = ?", (address,)
            ).fetchone()
            return int(count)
        finally:
            store.close()


@dataclass(frozen=True)
class Result:
    """What became of the messages for one site."""

    name: str
    comparison: Comparison
    dead: int
    """Dead letters at its server and in its datadir."""
    left: int
    """Messages in its datadir."""
    again: int
    """Messages that came again, and were not pushed again."""
    off_net: float
    waited: int
    killed_with: int
    problems: list[str] = field(default_factory=list)
    """What ``penstock audit`` finds."""

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            **self.comparison.counts(),
            "dead": self.dead,
            "left": self.left,
            "again": self.again,
            "offNet": self.off_net,
            "waited": self.waited,
            "killedWith": self.killed_with,
        }

    def differences(self) -> list[str]:
        """Return a line for everything that is not as promised."""
        found = [*self.comparison.faults(), *(f"{self.name}: {problem}" for problem in self.problems)]
        found += [f"{self.name}: {self.dead} dead letters"] if self.dead else []
        return found + ([f"{self.name}: {self.left} messages left in its datadir"] if self.left else [])


@dataclass(frozen=True)
class Outcome:
    """Result of a demo; ``differences`` has a line for everything that is not as promised."""

    results: list[Result]
    endings: list[Ending]
    """By site."""
    refused: int
    """Connections that the net has not let through."""

    @property
    def differences(self) -> list[str]:
        found = [line for result in self.results for line in result.differences()]
        found += [line for ending in self.endings for line in ending.differences()]
        if not any(result.off_net and result.waited for result in self.results) or not self.refused:
            found.append("no site was missed while it was off the net")
        if not any(result.killed_with for result in self.results):
            found.append("no site was killed while it had messages in hand")
        return [*dict.fromkeys(found)]

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            "holds": not self.differences,
            "differences": self.differences,
            "sites": {result.name: result.figures() for result in self.results},
            "refused": self.refused,
            "exitStatus": self.endings[0].statuses,
        }


async def read_outcome(sites: Sequence[Site], refused: int, statuses: Mapping[str, int]) -> Outcome:
    """Compare what is at each of ``sites`` with what the others have published."""
    results = [
        await _result(site, [row for other in sites if other is not site for row in other.rows]) for site in sites
    ]
    return Outcome(results, [await Ending.read(KEYSPACE, statuses, site.redis) for site in sites], refused)


async def _result(site: Site, wanted: Sequence[bytes]) -> Result:
    keys, counts = SITES[site.name], site.counts()
    newest_first: Any = await site.redis.lrange(arrived(site.name), 0, -1)
    metrics, found = await read_metrics(site.redis, keys), await audit(site.redis, keys)
    return Result(
        site.name,
        Comparison.compare(arrived(site.name), wanted, newest_first[::-1]),
        int(await site.redis.llen(keys.dead)) + counts.dead,
        counts.incoming + counts.outgoing,
        int(metrics.get("doubled", {}).get("count", 0)),
        site.off_net,
        site.waited,
        site.killed_with,
        ["nothing to audit"] if found is None else found.problems,
    )
