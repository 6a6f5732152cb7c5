"""Outcome of a run of the sites composition, read from all servers after its end."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from redis.asyncio import Redis

from compose.comparison import Comparison
from compose.ending import Ending
from compose.sites.keyspace import FANOUT, KEYSPACE, LINKS, arrived
from compose.sites.sent import Sent
from compose.sites.site import Site
from penstock.accounting.audit import Audit, audit
from penstock.encoding import decoded_fields
from penstock.keys import Keys
from penstock.metrics import read_metrics


@dataclass(frozen=True)
class LinkReport:
    """Metrics and state of the link to a site, as its vpush wrote them at site one."""

    metrics: dict[str, dict[str, str]]
    link: dict[str, str]
    """Last state of the link that vpush wrote."""

    @classmethod
    async def read(cls, redis: "Redis", keys: Keys) -> Self:
        link: Any = await redis.hgetall(keys.link)
        texts = decoded_fields(link)
        return cls(await read_metrics(redis, keys), texts)


@dataclass(frozen=True)
class Delivery:
    """Fate of the messages for one site."""

    name: str
    comparison: Comparison
    delay: float | None
    """Longest time from push to arrival (s)."""
    down_for: float
    """Time for which the site's server was down (s)."""
    most_waiting: int
    report: LinkReport

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            **self.comparison.figures(),
            "longestDelay": self.delay,
            "down": self.down_for,
            "mostWaiting": self.most_waiting,
            "metrics": self.report.metrics,
            "link": self.report.link,
        }


@dataclass(frozen=True)
class Outcome:
    """Result of a demo; ``differences`` has a line for everything that is not as promised."""

    pushed: int
    deliveries: list[Delivery]
    audits: dict[str, Audit | None]
    """By namespace."""
    ending: Ending

    @property
    def differences(self) -> list[str]:
        found = [line for delivery in self.deliveries for line in delivery.comparison.differences()]
        found += self.ending.differences()
        return found + [line for namespace, found in self.audits.items() for line in self._miscounts(namespace, found)]

    def _miscounts(self, namespace: str, found: Audit | None) -> list[str]:
        if found is None:
            return [f"{namespace}: nothing to audit, no service has counted anything"]
        return [f"{namespace}: {problem}" for problem in found.problems] + [
            f"{namespace}: {branch.delivered:,} of {self.pushed:,} counted as delivered to {branch.name}"
            for branch in found.legs
            if branch.delivered != self.pushed
        ]

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            "holds": not self.differences,
            "differences": self.differences,
            "pushed": self.pushed,
            "sites": {delivery.name: delivery.figures() for delivery in self.deliveries},
            "audits": {name: found and asdict(found) for name, found in self.audits.items()},
            "exitStatus": self.ending.statuses,
        }


async def read_outcome(redis: "Redis", sent: Sent, sites: Sequence[Site], statuses: Mapping[str, int]) -> Outcome:
    """Compare what is at ``sites`` with what was sent from site one, the server of ``redis``."""
    return Outcome(
        len(sent.rows),
        [await _delivery(redis, sent, site) for site in sites],
        {keys.namespace: await audit(redis, keys) for keys in (FANOUT, *LINKS.values())},
        await Ending.read(redis, KEYSPACE, statuses),
    )


async def _delivery(redis: "Redis", sent: Sent, site: Site) -> Delivery:
    newest_first: Any = await site.redis.lrange(arrived(site.name), 0, -1)
    return Delivery(
        site.name,
        Comparison.compare(arrived(site.name), sent.rows, newest_first[::-1]),
        site.longest_delay(sent.at),
        site.down_for,
        sent.most_waiting[site.name],
        await LinkReport.read(redis, LINKS[site.name]),
    )
