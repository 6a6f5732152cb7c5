"""A timer that scripts set to an earlier time by publishing when something falls due."""

import asyncio
import time
from math import inf
from typing import Any, Final

from common.context import Context
from penstock.base.keys import Keys
from penstock.core.raw_connection import pack
from services.monitor.settings import Settings

SPARE_SECONDS: Final = 0.001
"""Seconds by which a sleep is longer than it need be: what is due then is due for certain."""


class Timer:
    """Sleeps until something is due; ``listen`` subscribes to the channels on which scripts publish due times."""

    def __init__(self, context: Context[Settings]) -> None:
        self._context = context
        self._channels = [Keys(namespace).due for namespace in context.settings.watch]
        self._is_earlier = asyncio.Event()
        self._before = -inf
        self._earliest = inf

    async def listen(self) -> None:
        """Receive due times until cancelled."""
        await self._context.wire.send(pack([("SUBSCRIBE", *self._channels)]))
        while True:
            (reply,) = await self._context.wire.receive(1, owed=False)
            self._earliest = min(self._earliest, _due_time(reply))
            if self._earliest < self._before:
                self._is_earlier.set()

    async def sleep(self, seconds: float, before: float) -> bool:
        """Sleep for ``seconds``, but not beyond a due time below ``before`` that was published since the last sleep.

        ``before`` is in seconds since the epoch by the server's clock. Return whether any due time was published.
        """
        end, self._before = time.monotonic() + seconds, before
        while self._context.running:
            self._is_earlier.clear()
            if self._earliest < self._before:
                end, self._before = end - (self._before - max(self._earliest, 0)) + SPARE_SECONDS, self._earliest
            if (left := end - time.monotonic()) <= 0:
                break
            await self._context.pause(left, self._is_earlier)
        is_news = self._earliest < inf
        self._before, self._earliest = -inf, inf
        self._is_earlier.clear()
        return is_news


def _due_time(reply: Any) -> float:
    """Return the due time of a message; -infinity for the reply to a subscription and for what is no number."""
    try:
        return float(reply[2]) if reply[0] == b"message" else -inf
    except (TypeError, ValueError):
        return -inf
