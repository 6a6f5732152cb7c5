"""Requests that wait: workers for a task, and others for the end of one."""

import asyncio
from collections import deque

from penstock.core.wire import Reply


class Waiter(Reply):
    """One request that waits for ``what``: True once something has happened, False once its time is over."""

    __slots__ = ("timer", "what")

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.timer: asyncio.TimerHandle | None = None


class Waiting:
    """Those who wait, by what they wait for, the longest first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, deque[Waiter]] = {}
        self._is_closed = False
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, what: str, seconds: float) -> Waiter:
        """Begin to wait, for at most ``seconds``; end it with ``leave``."""
        waiter = Waiter(what)
        self._waiters.setdefault(what, deque()).append(waiter)
        self._count += 1
        waiter.timer = self._loop.call_later(seconds, self._end, waiter, False)
        if self._is_closed:
            self.leave(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Wait no more."""
        self._end(waiter, False)

    def wake(self, what: str, most: int) -> None:
        """Wake up to ``most`` who wait for ``what``."""
        while most > 0 and (waiters := self._waiters.get(what)):
            self._end(waiters[0], True)
            most -= 1

    def wake_all(self) -> None:
        """Wake all who wait: something may have happened that nobody has heard of."""
        for what in [*self._waiters]:
            self.wake(what, len(self._waiters.get(what, ())))

    def close(self) -> None:
        """End all waiting, also what is yet to begin: the service stops."""
        self._is_closed = True
        for waiters in [*self._waiters.values()]:
            for waiter in [*waiters]:
                self.leave(waiter)

    def _end(self, waiter: Waiter, happened: bool) -> None:
        if waiter.is_done:
            return
        if waiter.timer:
            waiter.timer.cancel()
        self._count -= 1
        waiters = self._waiters[waiter.what]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[waiter.what]
        waiter.set_result(happened)
