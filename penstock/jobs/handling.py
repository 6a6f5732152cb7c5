"""Has processors do jobs, and settles what becomes of them."""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Final

from penstock.base.errors import PenstockError, Unavailable, Unreadable
from penstock.base.log import Log
from penstock.jobs.attempt import Attempt, Batch, Unit
from penstock.jobs.consumer import Handler, Options
from penstock.jobs.deadlines import Deadlines
from penstock.jobs.errors import DeadlineTimeout, as_error
from penstock.jobs.errors import Final as FinalError
from penstock.jobs.in_hand import InHand
from penstock.jobs.job import packed_value
from penstock.jobs.processes import Processes

SHORT_SECONDS: Final = 0.02
"""While attempts take less than this, jobs are read ahead."""
AVERAGED: Final = 50
"""About how many attempts count for how long one takes."""
MAX_DEADLINE: Final = 1e8
"""Seconds from which a deadline is none."""
_log: Final = Log("penstock.jobs")


class Durations:
    """About how long attempts take."""

    def __init__(self) -> None:
        self.forget()

    def note(self, seconds: float) -> None:
        """Note how long one took."""
        self.mean += (seconds - self.mean) / AVERAGED

    def forget(self) -> None:
        """Know of no short ones."""
        self.mean = SHORT_SECONDS
        """In seconds."""

    @property
    def are_short(self) -> bool:
        """Return whether jobs are read ahead."""
        return self.mean < SHORT_SECONDS


class Handling:
    """Calls the processors of ``options`` for what is ``in_hand``; ``durations`` hears how long attempts take."""

    def __init__(self, options: Options, in_hand: InHand, durations: Durations) -> None:
        self._options, self.in_hand, self._durations = options, in_hand, durations
        self._handlers: Mapping[str, Handler] = options.handlers
        self._deadlines = {
            name: Deadlines(handler.deadline)
            for name, handler in options.handlers.items()
            if handler.deadline < MAX_DEADLINE
        }
        self._running = 0

    async def handle(self, unit: Unit) -> None:
        """Do a job, or a batch."""
        self._running += 1
        try:
            await (self._do_batch(unit) if isinstance(unit, Batch) else self._do(unit))
        finally:
            self._running -= 1

    async def _do(self, attempt: Attempt) -> None:
        handler, begun, in_hand = self._handlers[attempt.stream], monotonic(), self.in_hand
        deadlines = self._deadlines.get(attempt.stream)
        attempt._task = asyncio.current_task()
        try:
            if isinstance(handler.call, Processes):
                await handler.call.prepare(attempt)
            if deadlines:
                deadlines.add(attempt)
            result = await handler.call(attempt)
            kept = None if handler.result is None else (handler.result, packed_value(handler.result, result))
            if kept and attempt.why is None and attempt._node is not in_hand.node:
                await attempt.set(*kept).push()
                kept = None
            if attempt.why is None:
                in_hand.done(attempt, kept)
            else:
                self._failed(attempt, asyncio.CancelledError())  # it has not heard of its cancellation
        except BaseException as error:  # noqa: BLE001  # whatever it is, it ends this attempt only
            self._failed(attempt, error)
        finally:
            self._durations.note(monotonic() - begun)
            if deadlines:
                deadlines.discard(attempt)
            attempt._task = None
            in_hand.ended(attempt)
            if self._running == 1:
                in_hand.flush()

    async def _do_batch(self, batch: Batch) -> None:
        attempts = [each for each in batch.attempts if each.why is None]
        if not attempts:  # they were lost or cancelled while they waited
            return
        handler = self._handlers[attempts[0].stream]
        failure: BaseException | None = None
        try:
            async with asyncio.timeout(None if handler.deadline > MAX_DEADLINE else handler.deadline) as deadline:
                await handler.call(attempts)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it ends this batch only
            failure = error
            if deadline.expired():
                failure = _too_long(handler)
        is_stranded = any(attempt._is_stranded for attempt in attempts)
        for attempt in attempts:
            attempt._is_stranded = is_stranded
            error_ = attempt._failure or failure
            if error_ is not None:
                self._failed(attempt, error_)
            elif attempt.why is None:
                self.in_hand.done(attempt)

    def _failed(self, attempt: Attempt, error: BaseException) -> None:
        """Settle an attempt that was given up, or whose processor has raised."""
        in_hand, final = self.in_hand, isinstance(error, FinalError)
        if attempt.why in ("lost", "cancelled", "gone"):
            return  # others have it, or nobody
        if attempt.why == "stop" or (attempt.why is None and is_cancelled(error)):
            in_hand.hand_back(attempt, has_begun=True)
            return
        if attempt.why == "deadline":
            error = _too_long(self._handlers[attempt.stream])
        if attempt._is_stranded and isinstance(error, Unavailable | DeadlineTimeout):
            in_hand.hand_back_for_a_while(attempt, str(error))
            return
        if final or attempt.number >= self._options.attempts or isinstance(error, Unreadable):
            in_hand.bury(attempt, as_error(error))
        else:
            in_hand.again(attempt, as_error(error), self._options.backoff.delay_after(attempt.number))
        where = {"stream": attempt.stream, "group": attempt.group, "job": attempt.id, "attempt": attempt.number}
        if not isinstance(error, PenstockError):
            _log.warning("a processor has failed", error, **where)
        elif not final:  # which is no fault of it
            _log.warning("a processor has failed", **where, reason=f"{type(error).__name__}: {error}")


def _too_long(handler: Handler) -> DeadlineTimeout:
    return DeadlineTimeout(f"the processor took longer than its deadline, {handler.deadline:g} s")


def is_cancelled(error: BaseException) -> bool:
    """Return whether the running task is cancelled, which is not so if it has raised the error by itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
