"""Keys of the edge composition, on the servers of all three sites."""

from typing import Final

from compose.keyspace import Keyspace
from penstock.keys import Keys

SITES: Final = {name: Keys(f"edge:{name}") for name in ("north", "east", "south")}
KEYSPACE: Final = Keyspace(
    "edge",
    tuple(SITES.values()),
    keys="(north|east|south):.+",
    in_flight="(north|east|south):(in|pending|dead)",
)


def published(name: str) -> str:
    """Return the list whose messages site ``name`` publishes."""
    return f"edge:{name}:in"


def arrived(name: str) -> str:
    """Return the list of what has come to site ``name``."""
    return f"edge:{name}:out"
