"""Moves of messages to the lists that will serve them soonest, inside the server."""

from pathlib import Path
from typing import Any, Final

from common.context import Context
from common.in_flight import counters
from common.mover import Moved, Mover
from penstock.core.script import Script
from services.mbalance.settings import Settings
from services.mbalance.workers import Workers

_move: Final = Script.read(Path(__file__).parent / "lua" / "move.lua")
WATCH_SECONDS: Final = 1.0
"""Seconds between two looks for workers that have come or gone."""
UNSERVED_SECONDS: Final = 0.2
"""Seconds until a move is tried again while no list has a worker."""


class Balancer(Mover[Settings]):
    """Moves messages from ``in`` through this instance's pending list to one of the lists of ``out`` each."""

    def __init__(self, context: Context[Settings]) -> None:
        settings, keys = context.settings, context.required_keys
        self._workers = Workers(settings)
        named: dict[str, Any] = {
            "rates": keys.rates,
            "lease": keys.lease if settings.ordered else None,
            "batch": settings.batch,
            "bytes": settings.batch_bytes,
            "policy": settings.policy,
            "field": settings.field or "",
            "forget": settings.rate_expire,
            "inhand": int(bool(settings.in_hand)),
            "token": context.token or 0,
            **counters(keys),
            **{name: keys.metric(name) for name in ("settled", "delivered", "rebalanced")},
            **self._workers.named,
        }
        super().__init__(context, _move, settings.in_, context.pending(settings.pending), named)

    async def watch(self) -> None:
        """Look every second for workers that have come or gone; have messages moved that wait for dead ones."""
        context = self._context
        while self._workers.watched and context.running:
            await self.find_workers()
            if await self._workers.stranded(context.redis):
                await context.wake()
            await context.pause(WATCH_SECONDS)

    async def find_workers(self) -> None:
        """Read who works."""
        if await self._workers.refresh(self._context.redis):
            self.give(**self._workers.named)

    def _read(self, reply: Any) -> Moved:
        *numbers, alive = reply
        moved = super()._read(numbers)
        waits = moved.waiting and not alive
        self._context.block("no list has a live worker" if waits else "", waiting=moved.waiting)
        return Moved(moved.messages, moved.waiting, 0.0 if alive else UNSERVED_SECONDS)
