"""Sleep until something is due, or until somebody says that it is earlier than known."""

import asyncio

from common.context import Context
from penstock.keys import Keys
from penstock.wire import pack
from services.monitor.settings import Settings


class Alarm:
    """Listens to the channels on which scripts say that something falls due before all else."""

    def __init__(self, context: Context[Settings]) -> None:
        self._context = context
        self._channels = [Keys(namespace).due for namespace in context.settings.watch]
        self._rung = asyncio.Event()

    async def listen(self) -> None:
        """Until cancelled."""
        await self._context.wire.send(pack([("SUBSCRIBE", *self._channels)]))
        while True:
            await self._context.wire.receive(1)
            self._rung.set()

    async def wait(self, seconds: float) -> None:
        await self._context.pause(seconds, self._rung)
        self._rung.clear()
