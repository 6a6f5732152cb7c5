"""Site of the edge composition: its keys, its datadir, what is done to it, and what became of its messages."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from redis.asyncio import Redis

from compose.comparison import Comparison
from compose.keyspace import Keyspace
from compose.tables import Column
from penstock.accounting.audit import Audit, audit
from penstock.keys import Keys
from penstock.metrics import read_metrics
from penstock.outbox.store import Counts, Store

SITES: Final = {name: Keys(f"edge:{name}") for name in ("north", "east", "south")}
KEYSPACE: Final = Keyspace(
    "edge",
    tuple(SITES.values()),
    keys="(north|east|south):.+",
    in_flight="(north|east|south):(in|pending|dead)",
)


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

    @property
    def keys(self) -> Keys:
        return SITES[self.name]

    @property
    def published(self) -> str:
        """Return the list whose messages it publishes."""
        return f"edge:{self.name}:in"

    @property
    def arrived(self) -> str:
        """Return the list of what has come to it."""
        return f"edge:{self.name}:out"

    def counts(self) -> Counts:
        """Return what its datadir has, also while it runs."""
        with closing(Store.read(self.datadir)) as store:
            return store.counts()

    def waiting_for(self, address: str) -> int:
        """Return how many messages wait here for the site at ``address``."""
        query = "SELECT count(*) FROM deliveries JOIN destinations ON id = destination WHERE address = ?"
        with closing(Store.read(self.datadir)) as store:
            (count,) = store.connection.execute(query, (address,)).fetchone()
            return int(count)


@dataclass(frozen=True)
class Result:
    """What became of the messages for one site."""

    site: Site
    comparison: Comparison
    dead: int
    """Dead letters at its server and in its datadir."""
    left: int
    """Messages in its datadir."""
    again: int
    """Messages that came again, and were not pushed again."""
    audit: Audit | None

    @classmethod
    async def read(cls, site: Site, wanted: Sequence[bytes]) -> Self:
        counts, metrics = site.counts(), await read_metrics(site.redis, site.keys)
        return cls(
            site,
            await Comparison.read(site.redis, site.arrived, wanted, ordered=False),
            await site.redis.llen(site.keys.dead) + counts.dead,
            counts.incoming + counts.outgoing,
            int(metrics.get("doubled", {}).get("count", 0)),
            await audit(site.redis, site.keys),
        )

    def problems(self) -> list[str]:
        """Return a line for each message that did not arrive as it must, but for those that content shows."""
        found = [f"{self.site.name}: {self.dead} dead letters"] if self.dead else []
        return found + ([f"{self.site.name}: {self.left} messages left in its datadir"] if self.left else [])

    def column(self) -> Column:
        """Return its column in the table."""
        site, found = self.site, self.comparison
        return [
            {
                "sent to it": found.sent,
                "arrived": found.got,
                "lost": found.lost.total(),
                "doubled": found.doubled.total(),
                "dead": self.dead,
            },
            {
                "off the net (s)": f"{site.off_net:.1f}" if site.off_net else None,
                "waited for it meanwhile": site.waited if site.off_net else None,
                "in hand when it was killed": site.killed_with or None,
                "came again, and was dropped": self.again,
            },
        ]

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        return {
            **self.comparison.counts(),
            "dead": self.dead,
            "left": self.left,
            "again": self.again,
            "offNet": self.site.off_net,
            "waited": self.site.waited,
            "killedWith": self.site.killed_with,
        }
