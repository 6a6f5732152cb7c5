"""Keys of the sites composition, on the servers of all three sites."""

from typing import Final

from compose.keyspace import Keyspace
from penstock.keys import Keys

SOURCE: Final = "sites:in"
FANOUT: Final = Keys("sites:mpush")
LINKS: Final = {name: Keys(f"sites:vpush:{name}") for name in ("two", "three")}
"""Sites that site one sends to, each with the namespace of its vpush."""
KEYSPACE: Final = Keyspace(
    "sites",
    (FANOUT, *LINKS.values()),
    keys="in|(for|mpush|vpush):.+|(two|three)(:from:.+)?",
    in_flight="in|for:(two|three)|(mpush|vpush:(two|three)):(pending(:.+)?|dead)",
)


def arrived(name: str) -> str:
    """Return the list of site ``name``, on its own server."""
    return f"sites:{name}"


def queues_for(name: str) -> tuple[str, str]:
    """Return the lists of site one that hold what has not arrived at site ``name``."""
    return f"sites:for:{name}", f"{LINKS[name].namespace}:pending"
