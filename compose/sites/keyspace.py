"""The keys of the sites composition, on the servers of all three."""

import re
from typing import Final

from compose.keyspace import Keyspace
from penstock.keys import Keys

SOURCE: Final = "sites:in"
FANOUT: Final = Keys("sites:mpush")
LINKS: Final = {name: Keys(f"sites:vpush:{name}") for name in ("two", "three")}
"""Each site that site one sends to, and the namespace of the vpush that does it."""

KEYSPACE: Final = Keyspace(
    "sites",
    namespaces=(FANOUT.namespace, *(keys.namespace for keys in LINKS.values())),
    own=re.compile(r"sites:(in|(for|mpush|vpush):.+|(two|three)(:from:.+)?)", re.DOTALL),
    way=re.compile(r"sites:(in|for:(two|three)|(mpush|vpush:(two|three)):(pending(:.+)?|dead))", re.DOTALL),
)


def arrived(name: str) -> str:
    """Return the list of site ``name``, on its own server."""
    return f"sites:{name}"


def queues_for(name: str) -> tuple[str, str]:
    """Return the lists of site one that hold what has not arrived at site ``name``."""
    return f"sites:for:{name}", f"{LINKS[name].namespace}:pending"
