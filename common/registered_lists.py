"""The lists that all services of a server have registered: answers must not be pushed to them."""

import time
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError
from structlog.typing import FilteringBoundLogger

from common.settings.base import ServiceSettings
from penstock.base.encoding import encoded
from penstock.base.keys import Keys
from penstock.inspect.ownership import Ownership, registration_of
from penstock.inspect.pending import parse_holdings

STALE: Final = 5.0
"""Seconds after which the registered lists are read again, before the next message."""


async def announce(redis: "Redis", keys: Keys, settings: ServiceSettings, log: FilteringBoundLogger) -> None:
    """Register the lists of ``settings``, and pending lists of former settings that may hold messages.

    Log a warning if the server refuses: the service works, but others do not know its lists.
    """
    held: Any = await redis.hvals(encoded(keys.holdings))
    former = {name for words in held for names in parse_holdings(words) for name in names}
    words = registration_of(settings.lists(), former | {*settings.pending_lists})
    refusals = [
        await _refusal(redis, encoded(directory), encoded(keys.namespace), words) for directory in keys.directories
    ]
    if all(refusals):
        log.warning("other services do not know the lists of this one", key=keys.directories[0], reason=refusals[0])


async def _refusal(redis: "Redis", directory: bytes, namespace: bytes, words: str) -> str:
    """Return why the server refused the registration; an empty text if it did not."""
    try:
        if await redis.hget(directory, namespace) != encoded(words):  # by itself: a script would need every right to it
            await redis.hset(directory, namespace, words)
    except ResponseError as error:
        return str(error)
    return ""


class RegisteredLists:
    """Reads what others have registered, at most every ``STALE`` seconds."""

    def __init__(self, redis: "Redis", keys: Keys, log: FilteringBoundLogger) -> None:
        self._redis, self._keys, self._log = redis, keys, log
        self._read_at = float("-inf")
        self._refused = ""

    async def read(self) -> Ownership | None:
        """Return the registered names, or None if the last ones are still fresh or the server refuses."""
        if time.monotonic() - self._read_at < STALE:
            return None
        async with self._redis.pipeline(transaction=False) as wire:
            for directory in self._keys.directories:
                wire.hgetall(encoded(directory))
            replies: list[Any] = await wire.execute(raise_on_error=False)
        self._read_at = time.monotonic()
        found = [reply for reply in replies if not isinstance(reply, ResponseError)]
        if not found and str(replies[0]) != self._refused:
            self._refused = str(replies[0])
            self._log.warning("the lists of other services are unknown", reason=self._refused)
        return Ownership.parse(found) if found else None
