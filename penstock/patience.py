"""Repeat a call while trouble passes by itself, for a bounded time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, TypeVar

from redis.asyncio import Redis
from redis.backoff import EqualJitterBackoff
from redis.exceptions import ConnectionError, MovedError, RedisError, TimeoutError

from penstock.connection import follow, return_home
from penstock.errors import PenstockError, Unavailable, WrongType
from penstock.passing import passes

BACKOFF: Final = EqualJitterBackoff(cap=1, base=0.02)
HURRY_SECONDS: Final = 3.0
"""Longest wait (s) of a program that ends."""
T = TypeVar("T")


class Patience:
    """``await patience(call)`` returns what ``call`` does, a coroutine function that may run several times.

    Raise ``Unavailable`` if a server is away, full or read-only for longer than ``seconds``; None waits without end.
    Once ``hurries`` is set, no call waits for longer than ``HURRY_SECONDS``.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.hurries = False

    async def __call__(self, call: Callable[[], Awaitable[T]], *clients: "Redis", hurries: bool = False) -> T:
        """Call, and let ``clients`` follow a slot of a cluster that has moved; ``hurries`` is for this call alone."""
        begun, failures = time.monotonic(), 0
        while True:
            try:
                return await call()
            except (RedisError, OSError, PenstockError) as error:
                if isinstance(error, WrongType) or not passes(error):
                    raise
                waited, most = time.monotonic() - begun, inf if self.seconds is None else self.seconds
                if waited >= (min(most, HURRY_SECONDS) if hurries or self.hurries else most):
                    raise Unavailable(f"waited {waited:.0f} s (patience): {error}") from error
                if isinstance(error, MovedError):
                    await follow(error, *clients)
                elif isinstance(error, ConnectionError | TimeoutError):
                    await return_home(*clients)
            failures += 1
            await asyncio.sleep(BACKOFF.compute(failures))
