"""The location of a message: its state, its holder, and what happens next, as ``penstock explain`` prints it."""

from dataclasses import dataclass
from typing import Final

from penstock.inspect.namespace import Instance

MAX_QUEUE_SCAN: Final = 10_000
"""How many messages of a queue are searched for one, from the end that is taken next."""


@dataclass(frozen=True)
class Location:
    """Facts about one message. Times are seconds since the epoch; None or empty: unknown, or does not apply."""

    namespace: str
    asked: str
    state: str = "unknown"
    """``delayed``, ``in flight``, ``dead``, ``revived``, ``buried``, ``removed`` (revived or buried), ``done``,
    ``expired``, ``stray`` (it has or had a record, but is nowhere) or ``unknown``."""
    now: float = 0
    id: str = ""
    xid: str = ""
    others: tuple[str, ...] = ()
    """Younger messages with the same xid."""
    namesake: str = ""
    """The id of another message, if ``asked`` is the xid of this one and the id of that one."""
    since: float | None = None
    """When it entered that state; for a failed message, when it was last delivered."""
    until: float | None = None
    """When ``next`` happens."""
    next: str = ""
    """``delivery``, ``retry``, ``dead`` or ``expired``; empty if nothing happens until a worker takes it."""
    attempt: int | None = None
    """Deliveries so far."""
    attempts: int | None = None
    """Maximum number of deliveries."""
    waits: float | None = None
    """Time of a worker (s), if no worker has taken it yet: the deadline starts then."""
    backoff: tuple[float, float] | None = None
    """Shortest and longest delay (s) between ``until`` and the retry."""
    queue: str = ""
    held: str = ""
    """``queue``: no worker has taken it; ``worker``; ``unsure``: it is beyond the searched part of the queue."""
    before: int | None = None
    """How many messages of the queue are ahead of it."""
    length: int = 0
    """Length of the queue; for an unknown message, of the list that mdispatch takes from."""
    service: str = ""
    """The id of the instance that delivered it."""
    instance: Instance | None = None
    """That instance, if it is alive."""
    monitors: tuple[str, ...] = ()
    """Live monitors of the namespace, if something is overdue."""
    traceparent: str = ""
    """The trace of the client that sent it, as its record or its letter says."""
    reason: str = ""
    error: str = ""
    seconds: float | None = None
    late: bool = False
    """Whether it was done after its timeout."""
    reach: float | None = None
    """Time of the oldest event, if no event is about this message."""

    @property
    def overdue(self) -> bool:
        return self.until is not None and self.until <= self.now
