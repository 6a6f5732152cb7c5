"""From the outbox to the list ``out``, each message once: its id is remembered in the transaction that pushes it."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any, Final

from common.context import Context
from common.transaction import REFUSED
from penstock.core.script import Script
from penstock.outbox import Message
from services.outbox.settings import Settings

_receive: Final = Script.read(Path(__file__).parent / "lua" / "receive.lua")
REMEMBERED: Final = 10_000
"""Ids of messages that were pushed, and may still be in the outbox when the process dies: far more than can be."""
CHECK_SECONDS: Final = 1.0


class Receiving:
    """Messages whose handlers wait until they are in the list; they wait, too, while the server is away."""

    def __init__(self) -> None:
        self._waiting = dict[int, tuple[Message, asyncio.Future[None]]]()
        self._numbers = count()
        self._news = asyncio.Event()

    async def take(self, message: Message) -> None:
        """Return once ``message`` is in the list."""
        number, pushed = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = message, pushed
        self._news.set()
        try:
            await pushed
        finally:
            self._waiting.pop(number, None)

    async def run(self, context: Context[Settings]) -> None:
        """Push messages, the oldest first, until the run ends."""
        while context.running:
            self._news.clear()
            if batch := self._oldest(context.settings):
                if await self._push(context, [message for message, _ in batch]):
                    for _, pushed in batch:
                        if not pushed.done():
                            pushed.set_result(None)
                    await asyncio.sleep(0)
            else:
                await context.pause(CHECK_SECONDS, self._news)

    def _oldest(self, settings: Settings) -> list[tuple[Message, asyncio.Future[None]]]:
        found, size = list[tuple[Message, asyncio.Future[None]]](), 0
        for each in self._waiting.values():
            if not each[1].done():
                found.append(each)
                size += len(bytes(each[0]))
            if len(found) >= settings.batch or size >= settings.batch_bytes:
                break
        return found

    async def _push(self, context: Context[Settings], messages: list[Message]) -> bool:
        """Push ``messages`` that were not pushed before; return False if the server is full."""
        keys = context.required_keys
        metrics = {name: keys.metric(name) for name in ("taken", "settled", "delivered", "doubled")}
        result: Any = await context.run_unless_full(
            _receive,
            out=context.settings.out,
            received=keys.received,
            lease=keys.lease,
            token=context.token or 0,
            most=REMEMBERED,
            messages=[word for each in messages for word in (each.id, bytes(each))],
            **metrics,
        )
        return result is not REFUSED
