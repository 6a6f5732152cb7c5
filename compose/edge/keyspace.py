"""Keys of the edge composition, on the servers of all three sites."""

import re
from typing import Final

from compose.keyspace import Keyspace
from penstock.keys import Keys

SITES: Final = {name: Keys(f"edge:{name}") for name in ("north", "east", "south")}
KEYSPACE: Final = Keyspace(
    "edge",
    namespaces=tuple(keys.namespace for keys in SITES.values()),
    pattern=re.compile(r"edge:(north|east|south):.+", re.DOTALL),
    in_flight=re.compile(r"edge:(north|east|south):(in|pending|dead)", re.DOTALL),
)


def published(name: str) -> str:
    """Return the list whose messages site ``name`` publishes."""
    return f"edge:{name}:in"


def arrived(name: str) -> str:
    """Return the list of what has come to site ``name``."""
    return f"edge:{name}:out"
