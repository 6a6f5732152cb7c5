"""Calls to one object of another site: those that were not answered yet, and who waits for which event."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.base.errors import WrongCall
from penstock.bus.federation.failures import Lost, Silent, error_of

FIRST_CALL: Final = 1_000
"""Callbacks below are those of events."""
Answer = asyncio.Future[list[Any]]


class _Call(NamedTuple):
    answer: Answer
    begun: float
    expiry: asyncio.TimerHandle | None


class Calls:
    """``send(method, values, callback)`` sends a call; one that is not answered for ``seconds`` fails (``Silent``)."""

    def __init__(
        self, name: str, seconds: float | None, send: Callable[[str, tuple[Any, ...], int | None], None]
    ) -> None:
        self._name, self._seconds, self._send = name, seconds, send
        self._calls: dict[int, _Call] = {}
        self._waits: list[tuple[str, Answer]] = []
        self._number = FIRST_CALL
        self.is_open = False
        """Whether an answer can come."""

    @property
    def overdue(self) -> float:
        """Return for how long (s) the oldest call was not answered; 0 if all were."""
        oldest = next(iter(self._calls.values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.begun

    def begin(self, method: str, *values: Any) -> Answer:
        """Send a call; the future has the arguments of its callback, or raises ``Lost`` or ``Silent``."""
        answer: Answer = asyncio.get_running_loop().create_future()
        if not self.is_open:
            answer.set_exception(Lost("not connected"))
            return answer
        self._number += 1
        try:
            self._send(method, values, self._number)
        except WrongCall as error:  # it is too large
            answer.set_exception(error)
        else:
            self._calls[self._number] = _Call(answer, time.monotonic(), self._expiry(answer, method, self._number))
        return answer

    async def request(self, method: str, *values: Any) -> Any:
        """Call a method; return what it gives its callback. Raise as ``begin`` does, and what the other end says."""
        error, *found = [*await self.begin(method, *values), None]
        if error is not None:
            raise error_of(error)
        return found[0] if found else None

    async def until(self, event: str, method: str, *values: Any) -> Any:
        """Call a method that has no callback, and return what ``event`` brings; ``error`` is raised."""
        answer: Answer = asyncio.get_running_loop().create_future()
        expiry, entry = self._expiry(answer, method), (event, answer)
        self._waits.append(entry)
        try:
            self._send(method, values, None)
            found = await answer
        finally:
            if expiry:
                expiry.cancel()
            if entry in self._waits:
                self._waits.remove(entry)
        return found[0] if found else None

    def answered(self, number: int, values: list[Any]) -> None:
        """Take the answer to the call of a ``number``."""
        if (call := self._calls.pop(number, None)) is None:
            return
        if call.expiry:
            call.expiry.cancel()
        if not call.answer.done():
            call.answer.set_result(values)

    def happened(self, event: str, values: list[Any]) -> None:
        """Take an event that some may wait for; all get ``error``."""
        for entry in [each for each in self._waits if event in (each[0], "error")]:
            self._waits.remove(entry)
            if entry[1].done():
                continue
            if event == "error":
                entry[1].set_exception(error_of(values[0] if values else ""))
            else:
                entry[1].set_result(values)

    def drop(self, reason: str) -> None:
        """Fail all of them, since no answer can come any more."""
        self.is_open = False
        calls, waits = [*self._calls.values()], [*self._waits]
        self._calls.clear()
        self._waits.clear()
        for call in calls:
            if call.expiry:
                call.expiry.cancel()
        for answer in (*(call.answer for call in calls), *(answer for _, answer in waits)):
            if not answer.done():
                answer.set_exception(Lost(reason))

    def _expiry(self, answer: Answer, method: str, number: int | None = None) -> asyncio.TimerHandle | None:
        if self._seconds is None:
            return None
        return asyncio.get_running_loop().call_later(self._seconds, partial(self._expire, answer, method, number))

    def _expire(self, answer: Answer, method: str, number: int | None) -> None:
        if number is not None:
            self._calls.pop(number, None)
        if not answer.done():
            answer.set_exception(Silent(f"{self._name}: no answer to {method} for {self._seconds:g} s (patience)"))
