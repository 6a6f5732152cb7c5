"""Sleep until something is due, or until somebody says that it is earlier than known."""

import asyncio
from math import inf
from typing import Any

from common.context import Context
from penstock.keys import Keys
from penstock.raw_connection import pack
from services.monitor.settings import Settings


class Alarm:
    """Listens to the channels on which scripts say that something falls due before all else."""

    def __init__(self, context: Context[Settings]) -> None:
        self._context = context
        self._channels = [Keys(namespace).due for namespace in context.settings.watch]
        self._rung = asyncio.Event()
        self._before = -inf
        self._earliest = inf

    async def listen(self) -> None:
        """Until cancelled."""
        await self._context.wire.send(pack([("SUBSCRIBE", *self._channels)]))
        while True:
            (reply,) = await self._context.wire.receive(1, owed=False)
            self._earliest = min(self._earliest, _due(reply))
            if self._earliest < self._before:
                self._rung.set()

    async def wait(self, seconds: float, before: float) -> None:
        """What falls due at ``before`` (seconds since the epoch by the server's clock) or later is no news."""
        self._before = before
        if self._earliest >= before:  # nothing was said since the last wait
            await self._context.pause(seconds, self._rung)
        self._before, self._earliest = -inf, inf
        self._rung.clear()


def _due(reply: Any) -> float:
    """When something falls due; at once where a subscription begins, or somebody says what is no time."""
    try:
        return float(reply[2]) if reply[0] == b"message" else -inf
    except (TypeError, ValueError):
        return -inf
