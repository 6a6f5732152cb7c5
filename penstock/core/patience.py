"""Repeat a call while trouble passes by itself, for a bounded time."""

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Final, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from penstock.base.errors import PenstockError, Unavailable, WrongCall, WrongType
from penstock.base.log import Log
from penstock.core.connection import find_anew
from penstock.core.link import Outage, again, passes

HURRY_SECONDS: Final = 3.0
"""Longest wait (s) of a program that ends."""
T = TypeVar("T")


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and value >= 0


class Patience:
    """``await patience(call)`` returns what ``call`` does, a coroutine function that may run several times.

    It raises ``Unavailable`` if a server is away, full or read-only for longer than ``seconds``; None waits for ever.
    Once ``hurries`` is set, no call waits for longer than ``HURRY_SECONDS``. ``log`` gets a line when calls begin to
    wait, and one when a call succeeds again; an attempt that fails and succeeds at once is none.
    """

    def __init__(self, seconds: float | None, log: Log | None = None) -> None:
        if seconds is not None and not _is_duration(seconds):
            raise WrongCall(f"patience={seconds!r}: expected seconds, or None to wait without end")
        self.seconds = seconds
        self.hurries = False
        self._outage = Outage(log)

    def most(self, *, hurries: bool = False) -> float:
        """Return how long (s) a call waits."""
        most = inf if self.seconds is None else self.seconds
        return min(most, HURRY_SECONDS) if hurries or self.hurries else most

    @asynccontextmanager
    async def bounded(self, why: Callable[[], str]) -> AsyncIterator[None]:
        """Raise ``Unavailable`` with ``why()`` if the block waits for longer than ``seconds``."""
        try:
            async with asyncio.timeout(self.seconds) as limit:
                yield
        except builtins.TimeoutError:
            if limit.expired():
                raise Unavailable(f"waited {self.seconds:g} s (patience): {why()}") from None
            raise

    async def __call__(
        self, call: Callable[[], Awaitable[T]], *clients: "Redis", hurries: bool = False, begun: float | None = None
    ) -> T:
        """Call, and let ``clients`` follow a slot of a cluster that has moved.

        ``hurries`` is for this call alone; it has waited since ``begun`` (monotonic), by default from now on.
        """
        begun = time.monotonic() if begun is None else begun
        try:
            result = await call()
        except (RedisError, OSError, PenstockError) as error:
            return await again(
                call,
                self._outage,
                lasts=_lasts,
                mend=lambda error, _: find_anew(error, *clients),
                most=lambda: self.most(hurries=hurries),
                begun=begun,
                first=error,
            )
        if self._outage.reason is not None:
            self._outage.over()
        return result


def _lasts(error: Exception) -> bool:
    return isinstance(error, WrongType) or not passes(error)
