"""What the service answers instead of a result, as exceptions."""

from typing import Any, Final

from penstock.base.errors import PenstockError, Stale, Unauthorized

MAX_WORDS: Final = 500
"""Characters of a problem's title or detail that an error has."""


class AnswerError(PenstockError):
    """The service refuses a call: ``status`` is that of HTTP, ``problem`` the body (RFC 9457), {} if there was none."""

    def __init__(
        self, message: str, status: int, problem: dict[str, Any] | None = None, *, repeated: bool = False
    ) -> None:
        super().__init__(message)
        self.status, self.problem = status, problem or {}
        self.repeated = repeated
        """Whether the call was sent before, and its answer was lost: that may have been executed."""

    @property
    def detail(self) -> str:
        """Return what the service says about it."""
        return words_of(self.problem)


class NotAllowed(AnswerError, Unauthorized):
    """The token is missing, unknown or has ended (401), or lacks the right (403)."""


class NoTask(AnswerError):
    """The queue has no such task: it was cancelled, has ended long ago, or never existed (404)."""


class LeaseLost(AnswerError, Stale):
    """The lease has ended, and another worker may have the task: this attempt can neither end nor prolong it (409)."""


class TaskFailed(PenstockError):
    """A task has ended without a result; ``error`` is what its worker reported, as it came; None if nothing."""

    def __init__(self, id: str, state: str, error: Any = None, reason: str | None = None, attempts: int = 0) -> None:
        text = error.get("message", error) if isinstance(error, dict) else error
        said = "" if error is None else f": {text}"
        super().__init__(f"task {id} is {state} after {attempts} attempts ({reason or 'no reason given'}){said}")
        self.id, self.state, self.error, self.reason, self.attempts = id, state, error, reason, attempts


class TaskExpired(TaskFailed):
    """A task was not done within its ``ttl`` or ``start_timeout``."""


def words_of(problem: dict[str, Any]) -> str:
    """Return the detail of ``problem``, or its title; empty if it has neither."""
    found = problem.get("detail") or problem.get("title") or ""
    return str(found)[:MAX_WORDS]


def error_of(status: int, problem: dict[str, Any], call: str, *, repeated: bool = False) -> AnswerError:
    """Return the error for an answer to ``call``, e.g. ``POST /queues/resize/ack``, that is no success."""
    said = words_of(problem)
    words = f"{call}: {status}{f' {said}' if said else ''}"
    kind, advice = AnswerError, _ADVICE.get(status)
    if status in (401, 403):
        kind = NotAllowed
    elif status == 404 and "/tasks/" in call:
        kind, advice = NoTask, "it was cancelled, has ended long ago, or never existed"
    elif status == 409 and call.endswith(("/ack", "/heartbeat")):
        kind, advice = LeaseLost, LOST
    return kind(f"{words}; {advice}" if advice else words, status, problem, repeated=repeated)


LOST: Final = "the lease has ended: another worker may have the task"
_ADVICE: Final = {
    401: "give a token that the service knows: `penstock token add` makes one",
    403: "give a token with this right: `penstock token add --right` makes one",
    404: "check the URL: is it that of hqueue?",
    405: "check the URL: is it that of hqueue?",
    413: "keep large values elsewhere, and add a reference to them",
    500: "see the log of the service",
}
