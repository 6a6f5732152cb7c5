"""What a run of the composition came to: read from all servers when all is quiet, and judged."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from redis.asyncio import Redis

from compose.passage import Passage
from compose.sites.keyspace import FANOUT, KEYSPACE, LINKS, arrived
from compose.sites.sent import Sent
from compose.sites.site import Site
from penstock.accounting.audit import Audit, audit
from penstock.encoding import decoded_fields
from penstock.keys import Keys
from penstock.metrics import read_metrics


@dataclass(frozen=True)
class Told:
    """What the vpush of a site says of itself, on the server of site one."""

    metrics: dict[str, dict[str, str]]
    link: dict[str, str]
    """The state of the link when it was last noted."""

    @classmethod
    async def read(cls, redis: "Redis", keys: Keys) -> Self:
        link: Any = await redis.hgetall(keys.link)
        texts = decoded_fields(link)
        return cls(await read_metrics(redis, keys), texts)


@dataclass(frozen=True)
class Delivery:
    """What came of the messages for one site."""

    name: str
    passage: Passage
    delay: float | None
    """The longest from push to arrival (s)."""
    down_for: float
    """Time for which the site's server was down (s)."""
    most_waiting: int
    told: Told

    def figures(self) -> dict[str, object]:
        """For JSON."""
        return {
            **self.passage.figures(),
            "longestDelay": self.delay,
            "down": self.down_for,
            "mostWaiting": self.most_waiting,
            "metrics": self.told.metrics,
            "link": self.told.link,
        }


@dataclass(frozen=True)
class Outcome:
    """All that the demo tells; ``differences`` says in words what is not as promised."""

    pushed: int
    deliveries: list[Delivery]
    audits: dict[str, Audit | None]
    """By namespace."""
    statuses: dict[str, int]
    """Exit status of each process by its name in the Procfile."""
    left: dict[str, int]
    registered: list[str]
    """Instances that are gone and left their registration behind."""

    @property
    def differences(self) -> list[str]:
        told = [line for delivery in self.deliveries for line in delivery.passage.differences()]
        told += [f"{name}: {length:,} left behind" for name, length in self.left.items()]
        told += [f"{key}: still registered" for key in self.registered]
        told += [f"{name}: exit status {status}" for name, status in self.statuses.items() if status]
        return told + [line for namespace, found in self.audits.items() for line in self._miscounts(namespace, found)]

    def _miscounts(self, namespace: str, found: Audit | None) -> list[str]:
        if found is None:
            return [f"{namespace}: nothing to audit, no service has counted anything"]
        return [f"{namespace}: {problem}" for problem in found.problems] + [
            f"{namespace}: {leg.delivered:,} of {self.pushed:,} counted as delivered to {leg.name}"
            for leg in found.legs
            if leg.delivered != self.pushed
        ]

    def figures(self) -> dict[str, object]:
        """For JSON."""
        return {
            "holds": not self.differences,
            "differences": self.differences,
            "pushed": self.pushed,
            "sites": {delivery.name: delivery.figures() for delivery in self.deliveries},
            "audits": {name: found and asdict(found) for name, found in self.audits.items()},
            "exitStatus": self.statuses,
        }


async def read_outcome(redis: "Redis", sent: Sent, sites: Sequence[Site], statuses: Mapping[str, int]) -> Outcome:
    """Compare what lies at ``sites`` with what was sent from site one, the server of ``redis``."""
    return Outcome(
        len(sent.rows),
        [await _delivery(redis, sent, site) for site in sites],
        {keys.namespace: await audit(redis, keys) for keys in (FANOUT, *LINKS.values())},
        dict(statuses),
        await KEYSPACE.left(redis),
        KEYSPACE.registered(await KEYSPACE.present(redis)),
    )


async def _delivery(redis: "Redis", sent: Sent, site: Site) -> Delivery:
    newest_first: Any = await site.redis.lrange(arrived(site.name), 0, -1)
    return Delivery(
        site.name,
        Passage.compare(arrived(site.name), sent.rows, newest_first[::-1]),
        site.longest_delay(sent.at),
        site.down_for,
        sent.most_waiting[site.name],
        await Told.read(redis, LINKS[site.name]),
    )
