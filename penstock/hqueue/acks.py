"""Acknowledgements of what a worker has handled: sent together, and again until they are answered."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.hqueue.calls import Calls
from penstock.hqueue.errors import AnswerError, LeaseLost, NotAllowed, words_of
from penstock.hqueue.task import Outcome, TaskInHand

MAX_ACKS: Final = 100
"""Maximum number of acknowledgements in one call, and ``MAX_BYTES`` of them, unless a single one is larger."""
MAX_BYTES: Final = 256 * 1024
UNACCEPTABLE: Final = frozenset({400, 413, 422})
"""Answers to a result that is never taken, however often it is sent."""
_log: Final = Log("penstock.hqueue")


@dataclass
class _Ack:
    task: TaskInHand
    outcome: Outcome
    sent: bool = False
    """Whether it was sent before, and no answer came."""
    refused: bool = False


class Acks:
    """Those of one worker, in order.

    A result that was accepted, and whose answer was lost, is refused when it is sent again (409), as one that came too
    late. Then the status of the task decides: it is done, or waits, after the attempt that this worker had.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls, self._waiting = calls, list[_Ack]()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, task: TaskInHand, outcome: Outcome) -> None:
        """Acknowledge ``task`` with the next call of ``send``, unless its lease is known to have ended."""
        if not task.is_lost:
            self._waiting.append(_Ack(task, outcome))

    async def send(self, patience: float | None = inf) -> None:
        """Send all. Raise ``Unavailable`` if the service stays away for longer than ``patience``."""
        while self._waiting:
            group = self._group()
            repeated = [ack.sent for ack in group]
            for ack in group:
                ack.sent = True
            answers = await self._answers(group, patience)
            del self._waiting[: len(group)]
            again = list[_Ack]()
            for ack, before, answer in zip(group, repeated, answers, strict=True):
                if (other := await self._judged(ack, answer, repeated=before)) is not None:
                    again.append(other)
            self._waiting[:0] = again

    def _group(self) -> list[_Ack]:
        size, group = 0, list[_Ack]()
        for ack in self._waiting[:MAX_ACKS]:
            size += len(ack.outcome.body)
            if group and (size > MAX_BYTES or ack.refused):
                break
            group.append(ack)
            if ack.refused:
                break
        return group

    async def _answers(self, group: list[_Ack], patience: float | None) -> list[AnswerError | None]:
        """Return the error of each, None if it was acknowledged."""
        try:
            answer = await self._calls.post("/ack", _body(group), patience=patience)
        except NotAllowed:
            raise
        except AnswerError as error:
            if error.status not in UNACCEPTABLE | {409}:
                raise
            return [error] * len(group)
        found: list[Any] = [answer.body] if len(group) == 1 else answer.body
        return [_error(each, repeated=answer.repeated) for each in found]

    async def _judged(self, ack: _Ack, error: AnswerError | None, *, repeated: bool) -> _Ack | None:
        """Return what to send instead, if something."""
        if error is None:
            return None
        task = ack.task
        if error.status == 409:
            accepted = await self._was_accepted(ack) if repeated or error.repeated else False
            if accepted is None:
                reason = "its answer was lost, and the task is not known any more"
                _log.warning("not sure whether acknowledged", service=self._calls.service, task=task.id, reason=reason)
            elif not accepted:
                task.lose()
            return None
        if not ack.refused:  # perhaps only since it came with others: ask for it alone
            return replace(ack, refused=True)
        _log.error("result refused", service=self._calls.service, task=task.id, reason=str(error))
        if ack.outcome.is_refusal:
            return None  # its lease ends
        return _Ack(task, Outcome.refusal(task.task_token, words_of(error.problem)), refused=True)

    async def _was_accepted(self, ack: _Ack) -> bool | None:
        """Return whether the attempt has ended as this worker said; None if the service does not tell."""
        try:
            status = await self._calls.status(ack.task.id)
        except PenstockError:
            return None
        return status.attempt == ack.task.attempt and status.state != "held"


def _body(group: list[_Ack]) -> bytes:
    if len(group) == 1:
        return group[0].outcome.body
    return b"[" + b",".join(ack.outcome.body for ack in group) + b"]"


def _error(answer: dict[str, Any], *, repeated: bool) -> AnswerError | None:
    """Return the error that one of several answers is."""
    if answer.get("acknowledged"):
        return None
    status = int(answer.get("status") or 409)
    kind = LeaseLost if status == 409 else AnswerError
    return kind(f"{status} {words_of(answer)}", status, answer, repeated=repeated)
