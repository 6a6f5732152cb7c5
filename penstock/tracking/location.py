"""Where one message is, since when, who has it and what comes next: the facts that ``penstock explain`` tells."""

from dataclasses import dataclass
from typing import Final

from penstock.inspect.namespace import Instance

MAX_QUEUE_SCAN: Final = 10_000
"""How many messages of a list are looked through for one, those that are taken next."""


@dataclass(frozen=True)
class Location:
    """Facts about one message; times are seconds since the epoch; None or empty is what is not known or is not so."""

    namespace: str
    asked: str
    state: str = "unknown"
    """``delayed``, ``in flight``, ``dead``, ``revived``, ``buried``, ``removed`` (one of those two), ``done``,
    ``expired``, ``stray`` (it has a record, or had one, but is nowhere) or ``unknown``."""
    now: float = 0
    id: str = ""
    xid: str = ""
    others: tuple[str, ...] = ()
    """Younger ones with the same xid."""
    namesake: str = ""
    """The id of another message, if what was asked for is the xid of this one and the id of that one."""
    since: float | None = None
    """Since when it is in that state; for one that failed, when it was last delivered."""
    until: float | None = None
    """When the next comes."""
    next: str = ""
    """``delivery``, ``retry``, ``dead`` or ``expired``; empty while nobody has taken it: nothing comes before that."""
    attempt: int | None = None
    """Deliveries so far."""
    attempts: int | None = None
    """Deliveries at most."""
    waits: float | None = None
    """What a worker has once it has taken it (s), if nobody has taken it yet: it has no deadline until then."""
    backoff: tuple[float, float] | None = None
    """The wait between ``until`` and the retry (s), at least and at most."""
    queue: str = ""
    held: str = ""
    """``queue``: nobody has taken it; ``worker``; ``unsure``: it is not among those that are taken next."""
    before: int | None = None
    """How many messages of the queue are taken before it."""
    length: int = 0
    """Of the queue; for one that is unknown, of the list that mdispatch takes from."""
    service: str = ""
    """Which instance delivered it."""
    instance: Instance | None = None
    """That one, if it is alive."""
    monitors: tuple[str, ...] = ()
    """Those alive that watch the namespace, where something is overdue."""
    reason: str = ""
    error: str = ""
    seconds: float | None = None
    late: bool = False
    """Whether it was done after its time-out."""
    reach: float | None = None
    """When the oldest event was, where the events do not know it."""

    @property
    def overdue(self) -> bool:
        return self.until is not None and self.until <= self.now
