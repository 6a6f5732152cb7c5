"""Deadlines of attempts that run: one timer for all of a stream, since they end in the order in which they began."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jobs.attempt import Attempt


class Deadlines:
    """Gives up attempts that have run for ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._loop = seconds, asyncio.get_running_loop()
        self._due: dict[Attempt, float] = {}
        """By attempt when (time of the event loop) it is over, the first one first."""
        self._is_timed = False

    def add(self, attempt: "Attempt") -> None:
        """Begin to count."""
        at = self._due[attempt] = self._loop.time() + self._seconds
        if not self._is_timed:
            self._is_timed = True
            self._loop.call_at(at, self._look)

    def discard(self, attempt: "Attempt") -> None:
        """Note that it has ended, or never began."""
        self._due.pop(attempt, None)

    def _look(self) -> None:
        self._is_timed = False
        now = self._loop.time()
        over = list["Attempt"]()
        for attempt, due in self._due.items():
            if due > now:
                self._is_timed = True
                self._loop.call_at(due, self._look)
                break
            over.append(attempt)
        for attempt in over:
            del self._due[attempt]
            attempt._give_up("deadline")
