"""Shares the event loop between messages that arrive and their handlers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turns:
    """While ``is_behind``, who stores what arrives has one turn at a time, and rests after it for as long.

    So handlers have half of the time at least. What has come is acknowledged after the rest: its sender waits, too.
    """

    def __init__(self, is_behind: Callable[[], bool]) -> None:
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
            await asyncio.sleep(time.monotonic() - begun)
