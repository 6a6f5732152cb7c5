"""What the service says of tasks and queues."""

from dataclasses import dataclass, field
from typing import Any, Final, Self

from penstock.base.errors import Unreadable
from penstock.hqueue.values import unpacked

ENDED: Final = frozenset({"done", "dead", "expired"})
STATES: Final = ("waiting", "delayed", "blocked", "held", "done", "dead", "expired")


@dataclass(frozen=True)
class Added:
    """A task that was added, or the one of the same ``id`` that was there."""

    id: str
    index: int
    """Its place in the queue, from 1 on."""
    state: str
    is_new: bool | None
    """False if the task was there: you gave an ``id`` again, or the call was repeated. None: unknown, of several."""

    @classmethod
    def read(cls, fields: Any, *, is_new: bool | None) -> Self:
        return cls(_text(fields, "taskId"), _whole(fields, "index"), str(fields.get("state", "waiting")), is_new)


@dataclass(frozen=True)
class Fetched:
    """A task that a worker has, until ``lease_end``: see ``Queue.fetch``."""

    id: str
    index: int
    attempt: int
    """1 for its first attempt."""
    task_token: str = field(repr=False)
    """With it the worker acknowledges this attempt, and prolongs its lease."""
    value: Any
    lease_end: float
    """Seconds since the epoch, by the service's clock."""
    last_progress: Any = None
    """What the attempt before has reported last, e.g. where to go on; None if nothing."""
    key: str | None = None

    @classmethod
    def read(cls, fields: Any) -> Self:
        return cls(
            _text(fields, "taskId"),
            _whole(fields, "index"),
            _whole(fields, "attempt"),
            _text(fields, "taskToken"),
            unpacked("value", fields),
            float(fields.get("leaseEnd") or 0),
            unpacked("progress", fields),
            fields.get("key"),
        )


@dataclass(frozen=True)
class Lease:
    """What a heartbeat hears."""

    is_cancelled: bool
    """Whether its producer wants the task no more."""
    end: float
    """Seconds since the epoch, by the service's clock."""

    @classmethod
    def read(cls, fields: Any) -> Self:
        return cls(bool(fields.get("cancelRequested")), float(fields.get("leaseEnd") or 0))


@dataclass(frozen=True)
class Status:
    """How far a task is."""

    id: str
    index: int
    state: str
    """waiting, delayed, blocked, held, done, dead or expired."""
    attempt: int
    added: float
    """Seconds since the epoch."""
    result: Any = None
    error: Any = None
    reason: str | None = None
    """Why it is dead."""
    progress: Any = None
    token: Any = None
    """What was given with it as ``token``."""
    name: str | None = None
    """The ``id`` that its producer gave it."""

    @property
    def has_ended(self) -> bool:
        """Return whether the task is done, dead or expired."""
        return self.state in ENDED

    @classmethod
    def read(cls, fields: Any) -> Self:
        return cls(
            _text(fields, "taskId"),
            _whole(fields, "index"),
            _text(fields, "state"),
            int(fields.get("attempt") or 0),
            float(fields.get("added") or 0),
            unpacked("result", fields),
            unpacked("error", fields),
            fields.get("reason"),
            unpacked("progress", fields),
            fields.get("token"),
            fields.get("id"),
        )


@dataclass(frozen=True)
class Held:
    """A task in the hands of a worker."""

    id: str
    index: int
    worker: str
    attempt: int
    lease_end: float


@dataclass(frozen=True)
class Info:
    """How many tasks of a queue are in which state, and who has those that are held."""

    service: str
    index: int
    """The last index that was given."""
    waiting: int
    delayed: int
    blocked: int
    in_hand: int
    """Tasks that workers have."""
    held: tuple[Held, ...]
    """Those whose leases end first, at most 100."""
    ended: int
    """Tasks that are done, dead or expired, and still kept."""
    oldest: float | None
    """Age (s) of the oldest task that waits."""

    @classmethod
    def read(cls, fields: Any) -> Self:
        held = tuple(
            Held(
                _text(each, "taskId"),
                _whole(each, "index"),
                str(each["worker"]),
                int(each.get("attempt") or 0),
                float(each.get("leaseEnd") or 0),
            )
            for each in fields.get("held", ())
        )
        counts = {name: int(fields.get(name) or 0) for name in ("waiting", "delayed", "blocked", "ended")}
        counts["in_hand"] = int(fields.get("inHand") or 0)
        service, index = _text(fields, "service"), _whole(fields, "index")
        return cls(service, index, held=held, oldest=fields.get("oldest"), **counts)


def _text(fields: Any, name: str) -> str:
    found = fields.get(name) if isinstance(fields, dict) else None
    if not isinstance(found, str):
        raise Unreadable(f"the answer has no {name}: is the URL that of hqueue?")
    return found


def _whole(fields: Any, name: str) -> int:
    found = fields.get(name)
    if not isinstance(found, int):
        raise Unreadable(f"the answer has no {name}: is the URL that of hqueue?")
    return found
