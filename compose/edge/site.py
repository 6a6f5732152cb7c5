"""Site of the edge composition: its keys on its own server, its datadir, and what is done to it."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from compose.keyspace import Keyspace
from penstock.keys import Keys
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
