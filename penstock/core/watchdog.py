"""Watches the event loop from a thread: what a handler blocks must not lose what is in hand to others."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from redis.exceptions import RedisError

from penstock.base.errors import PenstockError
from penstock.base.log import Log

NAME: Final = "penstock-renew"
"""Name of the thread, and of its connections in CLIENT LIST."""
SHARE: Final = 4
"""How often it looks in the time between two renewals."""
LEAST_SECONDS: Final = 0.05
BLOCKED: Final = 3
"""Looks without a sign of life after which the event loop is blocked."""


class Watchdog:
    """Renews in a thread what is in hand while the event loop is blocked, and says by what.

    ``every`` is the time (s) between two renewals, ``blames`` names what runs, and ``renew`` is awaited in an event
    loop of the thread.
    """

    def __init__(
        self,
        log: Log,
        every: float,
        blames: Callable[[], Mapping[str, object]],
        renew: Callable[[], Awaitable[None]],
    ) -> None:
        self._log, self.every, self._blames, self._renew = log, every, blames, renew
        self._interval = max(LEAST_SECONDS, every / SHARE)
        self._loop = asyncio.get_running_loop()
        self._beaten = time.monotonic()
        self._beat_next: asyncio.TimerHandle | None = None
        self._blamed: Mapping[str, object] | None = None
        """What has blocked the event loop, until it goes on."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        if self._beat_next:
            self._beat_next.cancel()

    def _beat(self) -> None:
        now = time.monotonic()
        blamed, self._blamed, seconds = self._blamed, None, now - self._beaten
        self._beaten = now
        if blamed is not None:
            self._log.warning("the event loop goes on after it was blocked", **blamed, seconds=round(seconds, 1))
        self._beat_next = self._loop.call_later(self._interval, self._beat)

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._stopped.wait(self._interval):
            last, looked = looked, time.monotonic()
            silent = looked - self._beaten
            if silent < BLOCKED * self._interval or looked - last > BLOCKED * self._interval:  # all stood still
                continue
            if self._blamed is None:
                self._blamed = self._blames()
                self._log.warning("a handler blocks the event loop", **self._blamed, seconds=round(silent, 1))
            try:
                asyncio.run(self._renewed())
            except (RedisError, OSError, PenstockError) as error:
                self._log.warning("cannot renew leases while the event loop is blocked", reason=str(error))

    async def _renewed(self) -> None:
        await self._renew()
