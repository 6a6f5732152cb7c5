"""Errors of jobs, with the codes of hfxbus."""

from typing import Any, ClassVar

from penstock.base.errors import PenstockError

MAX_MESSAGE = 10_000
"""Maximum number of characters of a message: it is kept with each attempt, and with the completion."""


class JobError(PenstockError):
    """Base class; ``code`` and ``errno`` are hfxbus's."""

    code: ClassVar[str] = "CONSUME_ERROR"

    @property
    def errno(self) -> str:
        """The same as ``code``, as in hfxbus."""
        return self.code


class FinishTimeout(JobError):
    """Not all groups have completed a job in time; ``completed`` has those that have."""

    code = "FINISH_TIMEOUT"

    def __init__(self, message: str, completed: dict[str, Any]) -> None:
        super().__init__(message)
        self.completed = completed


class PauseTimeout(JobError):
    """Jobs were still running when the time to pause was over."""

    code = "PAUSE_TIMEOUT"


class DeadlineTimeout(JobError):
    """A processor took longer than its deadline."""

    code = "DEADLINE_TIMEOUT"


class Cancelled(JobError):
    """A job was cancelled."""

    code = "CANCELLED"


class Rejected(JobError):
    """A group has rejected a job: ``error`` is what its consumer said, ``completed`` what all groups have said."""

    code = "REJECT_JOB_ERROR"

    def __init__(self, group: str, error: Any, completed: dict[str, Any]) -> None:
        text = error.get("message") if isinstance(error, dict) else error
        super().__init__(f"{group}: {text}")
        self.group, self.error, self.completed = group, error, completed


class Final(JobError):
    """Raise it in a processor, or an error of your own from it, to reject a job without another attempt."""

    code = "REJECT_JOB_ERROR"


def as_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as hfxbus publishes it: ``name``, ``message``, and ``code`` and ``errno`` if it has them."""
    try:
        message = str(error)
    except Exception as another:  # noqa: BLE001  # of its own code
        message = f"its text cannot be had: {type(another).__name__}"
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}... ({len(message):,} characters)"
    found: dict[str, Any] = {"name": type(error).__name__, "message": message}
    if isinstance(code := getattr(error, "code", None), str | int):
        errno = getattr(error, "errno", code)
        found |= {"code": code, "errno": errno if isinstance(errno, str | int | None) else code}
    return found
