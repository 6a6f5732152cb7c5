"""What the scripts of all instances publish: tasks that wait, and those that have ended."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from redis.exceptions import RedisError

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError
from penstock.core.patience import BACKOFF
from penstock.core.wire import Subscriber

PING_SECONDS: Final = 3.0
MAX_SILENCE: Final = 7.0
OPEN_SECONDS: Final = 3.0


Hear = Callable[[str | None], None]


class News:
    """Listens to channels from ``start`` to ``close``; a listener gets None if it may have missed something."""

    def __init__(self, url: str, listeners: dict[str, Hear]) -> None:
        self._lost = asyncio.Event()
        self._subscriber = Subscriber(url, "penstock-hqueue-news", lambda _: self._lost.set())
        self._listeners = listeners
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and stay connected."""
        for channel, listener in self._listeners.items():
            self._subscriber.add(channel.encode(), partial(_hear, listener))
        self._keeper = asyncio.create_task(self._keep_open())

    async def close(self) -> None:
        """Disconnect."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._subscriber.close()

    async def _keep_open(self) -> None:
        failures = 0
        while True:
            self._lost.clear()
            if not self._subscriber.is_open:
                try:
                    async with asyncio.timeout(OPEN_SECONDS):
                        await self._subscriber.open()
                    failures = 0
                except (RedisError, OSError, PenstockError):
                    failures += 1
                    await asyncio.sleep(BACKOFF.delay_after(failures))
                    continue
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_SECONDS):
                    await self._lost.wait()
            self._subscriber.ping()
            self._subscriber.cut_if_silent(MAX_SILENCE)


def _hear(listener: Hear, text: bytes | None) -> None:
    listener(None if text is None else decoded(text))
