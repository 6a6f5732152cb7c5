"""Names of what the parts share, as in the props files."""

from typing import Final

from compose.keyspace import Keyspace
from penstock.keys import Keys

IMPORTER: Final = Keys("web:importer")
ROUTER: Final = Keys("web:router")
DISPATCH: Final = Keys("web:dispatch")
BALANCE: Final = Keys("web:balance")
MONITOR: Final = Keys("web:monitor")
WORKERS: Final = ("1", "2", "3", "4")
NOTES: Final = "web:notes"
"""A list: the notes that were posted."""
KEYSPACE: Final = Keyspace(
    "web",
    (IMPORTER, ROUTER, DISPATCH, BALANCE, MONITOR),
    keys="in|api|work|answers|replies|notes|(work|worker|begun|importer|router|dispatch|balance|monitor):.+",
    in_flight=r"in|api|work|answers|work:\d+|work:\d+:consumer:.+"
    "|dispatch:(done|message:deadlines|message:delayed)|(router|dispatch|balance|monitor):pending(:.+)?",
)


def work_of(worker: str) -> str:
    """Return the list of requests for ``worker``."""
    return f"web:work:{worker}"


def registration_of(worker: str) -> str:
    """Return the key that ``worker`` keeps alive."""
    return f"web:worker:{worker}"


def begun(id: str) -> str:
    """Return the key that says that a worker has begun the request ``id``, which must not be done twice."""
    return f"web:begun:{id}"
