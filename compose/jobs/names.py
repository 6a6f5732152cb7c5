"""Names of what the parts share, as in the props files."""

import os
from typing import Final

from compose.keyspace import Keyspace
from penstock.jobs.keys import JobKeys
from penstock.keys import Keys

KEYS: Final = Keys("figures:worker")
PREFIX: Final = "figures:jobs"
JOBS: Final = JobKeys(PREFIX)
SOURCE: Final = "figures:in"
"""A list: months, e.g. ``2012-01``; more words may follow."""
OUT: Final = "figures:out"
"""A list: what both groups say of each month, as JSON."""
MONTHS: Final = "months"
"""The stream of a job for each month, whose key is the year."""
TALLY: Final = "tally"
"""The stream, and the name, of the job that is repeated."""
STATISTICS: Final = "statistics"
SNOW: Final = "snow"
GROUPS: Final = (STATISTICS, SNOW)
"""The groups, and the values of a job with their results."""
PRODUCER: Final = "figures"
KEYSPACE: Final = Keyspace(
    "figures",
    (KEYS,),
    keys="in(:.+)?|out|worker:.+|jobs:.+",
    in_flight="in(:consumer:.+)?|worker:message:deadlines|jobs:(wait|later|busy):.+",
)


def url() -> str:
    """Return the server."""
    return os.environ.get("REDIS", "redis://localhost:6379/0")


def seconds(name: str, default: float) -> float:
    """Return the seconds in the variable ``name``."""
    return float(os.environ.get(name) or default)


def claim_after() -> float:
    """Return after how long others take what a process had that has died (s)."""
    return seconds("FIGURES_CLAIM_AFTER", 5)


def worker() -> str:
    """Return the name of this process in results."""
    return f"{os.environ.get('FIGURES_WORKER', 'worker')}-{os.getpid()}"
