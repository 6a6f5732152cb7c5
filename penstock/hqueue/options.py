"""What a producer may say of a task."""

from collections.abc import Sequence
from typing import Any, Final, TypedDict, Unpack

from penstock.base.errors import WrongCall
from penstock.hqueue.values import as_json, packed


class TaskOptions(TypedDict, total=False):
    """Options of ``add``; times in seconds."""

    token: Any
    """Any JSON, which comes back with the outcome."""
    id: str
    """Your own id: while its task is kept, the same id adds nothing. Default: a random one."""
    key: str
    """Tasks of one key are done in order, one at a time."""
    delay: float
    ttl: float
    """Until it must be done, at most 7 days, which is the default."""
    start_timeout: float
    """Until a worker must have begun it."""
    attempt_timeout: float
    """Until one attempt must end; heartbeats do not prolong it."""
    attempts: int
    """Maximum number of attempts; 0 for no limit."""
    backoff: dict[str, float]
    """Delays between attempts: ``{"initial": 1, "factor": 2, "cap": 60}``."""
    non_retryable: Sequence[str]
    """Types of errors after which it is not tried again."""
    reply_to: str
    """The name of a list that gets the outcome: ``NS:replies:OWNER/NAME`` in the server."""
    webhook: str
    """A URL to which the outcome is posted; see ``penstock.webhook``."""


NAMES: Final = {
    "token": "token",
    "id": "id",
    "key": "key",
    "delay": "delay",
    "ttl": "ttl",
    "start_timeout": "startTimeout",
    "attempt_timeout": "attemptTimeout",
    "attempts": "attempts",
    "backoff": "backoff",
    "non_retryable": "nonRetryable",
    "reply_to": "replyTo",
    "webhook": "webhook",
}
"""Their names in the protocol."""


class NewTask:
    """A value with options of its own, for ``add_many``."""

    def __init__(self, value: Any = None, **options: Unpack[TaskOptions]) -> None:
        check(options)
        self.value, self.options = value, options

    def body(self, defaults: TaskOptions, id: str) -> bytes:
        """Return the request for it; ``defaults`` and ``id`` are for what its own options do not say."""
        options: dict[str, Any] = {"id": id, **defaults, **self.options}
        fields = {NAMES[name]: _plain(value) for name, value in options.items() if value is not None}
        return as_json(packed("value", self.value) | fields)


def check(options: TaskOptions) -> None:
    """Raise ``WrongCall`` for an unknown option."""
    for name in options:
        if name not in NAMES:
            raise WrongCall(f"unknown option {name}: expected {', '.join(NAMES)}")


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, tuple | set | frozenset) else value
