"""The state of the link: the hash ``<ns>:link`` and the metric of batches, written while something happens."""

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from common.context import Context
from penstock.core.once import Shipment
from penstock.core.script import Script
from services.vpush.settings import Settings

_link: Final = Script.read(Path(__file__).parent / "lua" / "link.lua")
WRITE_SECONDS: Final = 1.0
"""Seconds between two writes."""


class Link:
    """Notes batches that arrive, and writes every second; writes nothing while nothing waits or arrives."""

    def __init__(self, context: Context[Settings]) -> None:
        settings, keys = context.settings, context.required_keys
        self._context = context
        self._named: dict[str, Any] = {
            "link": keys.link,
            "batches": keys.metric("batches"),
            "state": keys.sequence,
            "pending": settings.pending,
            "source": settings.in_,
            "lease": keys.lease,
        }
        self._forget()

    def _forget(self) -> None:
        self._count = self._bytes = 0
        self._sum = self._most = self._last = 0.0

    def note(self, batch: Shipment) -> float:
        """Note that ``batch`` has arrived; return how many seconds that took."""
        self._last = time.monotonic() - batch.sent
        self._count, self._bytes = self._count + 1, self._bytes + batch.bytes
        self._sum, self._most = self._sum + self._last, max(self._most, self._last)
        return self._last

    async def watch(self) -> None:
        """Write the state every second, until cancelled."""
        waiting = 1
        while True:
            if waiting or self._count:
                waiting = await self.write("up")
            await asyncio.sleep(WRITE_SECONDS)

    async def write(self, state: str, reason: str = "") -> int:
        """Write that the link is ``up`` or ``down``; return how many messages wait."""
        seen = {"count": self._count, "bytes": self._bytes, "sum": f"{self._sum:.6f}", "most": f"{self._most:.6f}"}
        last = f"{self._last:.6f}" if self._count else ""
        self._forget()
        waiting: int = await _link(
            self._context.redis,
            token=self._context.token or 0,
            now=state,
            reason=reason,
            last=last,
            **seen,
            **self._named,
        )
        return waiting
