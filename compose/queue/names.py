"""Names of what the parts share, as in the props file."""

import os
from typing import Final

from compose.keyspace import Keyspace
from penstock.keys import Keys

KEYS: Final = Keys("months:work")
SERVICE: Final = "summary"
"""The queue, among those of its owner."""
OWNER: Final = "anna"
SOURCE: Final = "months:in"
"""A list: months to summarise, e.g. ``2012-01``."""
REPLIES: Final = "months"
"""The ``replyTo`` of tasks whose outcome goes to a list."""
KEYSPACE: Final = Keyspace(
    "months",
    (KEYS,),
    keys="in(:.+)?|work:.+",
    in_flight="in(:consumer:.+)?|work:(message:(deadlines|delayed|outbox)|replies:.+)",
)


def url() -> str:
    """Return where hqueue listens."""
    return os.environ.get("QUEUE_URL", "http://localhost:8080")


def token(name: str) -> str | None:
    """Return the token in the variable ``name``; None without one, for an hqueue that asks for none."""
    return os.environ.get(name) or None
