"""Names of what the parts share, as in the props files."""

from typing import Final

from penstock.keys import Keys

IMPORTER: Final = Keys("web:importer")
ROUTER: Final = Keys("web:router")
DISPATCH: Final = Keys("web:dispatch")
BALANCE: Final = Keys("web:balance")
MONITOR: Final = Keys("web:monitor")
WORKERS: Final = ("1", "2", "3", "4")
NOTES: Final = "web:notes"
"""A list: the notes that were posted."""


def work_of(worker: str) -> str:
    """Return the list of requests for ``worker``."""
    return f"web:work:{worker}"


def registration_of(worker: str) -> str:
    """Return the key that ``worker`` keeps alive."""
    return f"web:worker:{worker}"


def begun(id: str) -> str:
    """Return the key that says that a worker has begun the request ``id``, which must not be done twice."""
    return f"web:begun:{id}"
