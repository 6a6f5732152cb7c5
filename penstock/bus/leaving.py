"""What a bus leaves when it is disconnected: the latest first, queues together."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

from redis.exceptions import RedisError

from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.bus.queue import Queue
from penstock.core.instance import WATCH_SECONDS, Instance

LEAVE_SECONDS: Final = 4.0
"""Seconds for which a server is waited for that does not answer."""
_log: Final = Log("penstock.bus")


class Leaver(Protocol):
    """An object of a bus."""

    async def leave(self) -> Any:
        """End in order."""


class Leaving:
    """The objects that are in use."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = instances
        self._used = dict[Leaver, None]()

    def add(self, each: Leaver) -> None:
        """Have ``each`` leave before those that were added earlier."""
        self._used[each] = None

    def remove(self, each: Leaver) -> None:
        """Note that ``each`` has ended by itself."""
        self._used.pop(each, None)

    async def leave_all(self) -> None:
        """End all objects, for a bounded time while a server does not answer."""
        left_at = time.monotonic()
        while self._used:
            leaving = {asyncio.ensure_future(_leave(each)) for each in self._next()}
            while leaving:
                _, leaving = await asyncio.wait(leaving, timeout=WATCH_SECONDS)
                if not any(each.is_away for each in self._instances):
                    left_at = time.monotonic()
                elif time.monotonic() - left_at > LEAVE_SECONDS:
                    _log.warning("not left in order", objects=len(leaving), reason="a server does not answer")
                    for each in leaving:
                        each.cancel()
                    await asyncio.gather(*leaving, return_exceptions=True)
                    leaving = set()

    def _next(self) -> list[Leaver]:
        """Remove and return the latest; with a queue those before it that are queues, too."""
        together = [self._used.popitem()[0]]
        while self._used and isinstance(together[0], Queue) and isinstance(next(reversed(self._used)), Queue):
            together.append(self._used.popitem()[0])
        return together


async def _leave(each: Leaver) -> None:
    try:
        await each.leave()
    except (PenstockError, RedisError, OSError) as error:
        _log.warning("not left in order", object=str(each), reason=str(error))
