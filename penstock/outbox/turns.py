"""Shares the event loop between a backlog and all else that runs in it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turns:
    """While ``is_behind``, who moves a backlog has one turn at a time, and rests after it for ``rest`` times as long.

    So handlers have half of the time at least. What has come is acknowledged after the rest: its sender waits, too.
    """

    def __init__(self, is_behind: Callable[[], bool] = lambda: True, rest: float = 1.0) -> None:
        self._rest = rest
        self._is_behind = is_behind
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if not self._is_behind():
            yield
            return
        async with self._lock:
            begun = time.monotonic()
            yield
            await asyncio.sleep(self._rest * (time.monotonic() - begun))
