"""One task in hand, and how its handling ends."""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

from penstock.base.errors import WrongCall
from penstock.base.log import Log
from penstock.hqueue.answers import Fetched
from penstock.hqueue.errors import LOST
from penstock.hqueue.values import as_json, packed

MAX_ERROR_LENGTH: Final = 1_000
"""Characters of an exception that are reported."""
_log: Final = Log("penstock.hqueue")


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: the request body that acknowledges it."""

    body: bytes
    is_refusal: bool = False
    """Whether it says that the service has not taken the result."""

    @classmethod
    def result(cls, task_token: str, result: Any) -> Self:
        return cls(as_json({"taskToken": task_token} | packed("result", result)))

    @classmethod
    def error(cls, task_token: str, error: Any, *, retry: bool = True, delay: float | None = None) -> Self:
        more = ({} if retry else {"retry": False}) | ({} if delay is None else {"delay": delay})
        return cls(as_json({"taskToken": task_token, "error": error} | more))

    @classmethod
    def release(cls, task_token: str) -> Self:
        return cls(as_json({"taskToken": task_token, "release": True}))

    @classmethod
    def refusal(cls, task_token: str, words: str) -> Self:
        """Report that the service does not take the result, e.g. since it is too large."""
        error = {"type": "ResultRefused", "message": words}
        return cls(cls.error(task_token, error, retry=False).body, is_refusal=True)


class Settles(Protocol):
    """What a task tells how its handling goes."""

    service: str

    def check_in_hand(self, task: "TaskInHand", /) -> None:
        """Raise ``WrongCall`` unless ``task`` is in hand."""

    def note_end(self, task: "TaskInHand", outcome: Outcome | None, /) -> None:
        """Note that the handling of ``task`` has ended; without an ``outcome`` it goes back."""

    async def beat(self, task: "TaskInHand", progress: Any, /) -> bool:
        """Prolong the lease of ``task``; return whether its producer wants it no more."""


class TaskInHand:
    """What asynchronous and blocking tasks have in common."""

    def __init__(self, fetched: Fetched, source: Settles) -> None:
        self._fetched, self._source = fetched, source
        self._outcome: Outcome | None = None
        self.has_begun = False
        """Whether its handling has."""
        self.has_ended = False
        """Whether its handling has."""
        self.is_cancelled = False
        """Whether its producer wants it no more, as the last heartbeat has heard: end it soon."""
        self.is_lost = False
        """Whether its lease has ended, as the last heartbeat has heard: another worker may have it, stop."""

    @property
    def id(self) -> str:
        return self._fetched.id

    @property
    def index(self) -> int:
        """Return its place in the queue."""
        return self._fetched.index

    @property
    def value(self) -> Any:
        return self._fetched.value

    @property
    def key(self) -> str | None:
        return self._fetched.key

    @property
    def attempt(self) -> int:
        """Return 1 for its first attempt."""
        return self._fetched.attempt

    @property
    def last_progress(self) -> Any:
        """Return what the attempt before has reported last, e.g. where to go on; None if nothing."""
        return self._fetched.last_progress

    @property
    def task_token(self) -> str:
        """Return what names this attempt to the service."""
        return self._fetched.task_token

    def finish(self, result: Any = None) -> None:
        """End the task with ``result``, any JSON or bytes. The end of the ``with`` does it with None."""
        self._end(Outcome.result(self.task_token, result))

    def fail(self, error: Any, *, retry: bool = True, delay: float | None = None) -> None:
        """End this attempt: the task is tried again later, after ``delay`` (s) if given, or never without ``retry``.

        ``error`` is any JSON, usually ``{"type": ..., "message": ...}``.
        """
        self._end(Outcome.error(self.task_token, error, retry=retry, delay=delay))

    def lose(self) -> None:
        """Note that its lease has ended, and that its outcome does not count; log it once."""
        if not self.is_lost:
            self.is_lost = True
            named = {"service": self._source.service, "task": self.id, "attempt": self.attempt}
            _log.warning("lease lost", **named, reason=LOST)

    def __enter__(self) -> Self:
        self._source.check_in_hand(self)
        if self.has_begun:
            raise WrongCall("a task is handled once: it is in a `with` already")
        self.has_begun = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.has_ended, failed = True, error is not None and isinstance(error, Exception)
        if error is not None and not failed:  # cancelled, interrupted or left: the task goes back
            self._source.note_end(self, None)
            return False
        if failed:
            _log.warning("task failed", error, service=self._source.service, task=self.id, attempt=self.attempt)
            self._outcome = Outcome.error(self.task_token, _described(error))
        self._outcome = self._outcome or Outcome.result(self.task_token, None)
        self._source.note_end(self, self._outcome)
        return failed

    def __repr__(self) -> str:
        return f"<task {self.id} of {self._source.service}, attempt {self.attempt}>"

    def _end(self, outcome: Outcome) -> None:
        if not self.has_begun or self.has_ended:
            raise WrongCall("finish and fail belong to the task in hand: call them inside `with task:`")
        if self._outcome:
            raise WrongCall("a task has one outcome: finish or fail, once")
        self._outcome = outcome


class Task(TaskInHand):
    """One task in hand: ``with task: task.finish(resize(task.value))``.

    The end of the ``with`` acknowledges it, with the result of ``finish``, by default None, or the error of ``fail``.
    Report an exception as ``fail({"type": its class, "message": its text})``, log it, and go on with the loop. If the
    handler is cancelled or interrupted, give the task back, which costs no attempt. Heartbeats keep it meanwhile.
    """

    async def progress(self, progress: Any = None) -> bool:
        """Report any JSON, and prolong the lease; return ``is_cancelled``. Raise ``LeaseLost`` if it has ended.

        If the worker dies, the next attempt finds the report as ``last_progress``.
        """
        return await self._source.beat(self, progress)


def _described(error: BaseException | None) -> dict[str, str]:
    """Return an exception as the usual error; its text may not be what any encoding can write."""
    text = str(error)[:MAX_ERROR_LENGTH].encode(errors="backslashreplace").decode()
    return {"type": type(error).__name__, "message": text}
