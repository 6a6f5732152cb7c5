"""Push to a list of a server that may be away: see ``penstock.fallback``."""

from typing import TYPE_CHECKING, Final

from redis.exceptions import ConnectionError, MovedError, TimeoutError

from penstock.base.encoding import decoded
from penstock.base.log import Log
from penstock.base.urls import server_of
from penstock.core.connection import MAX_SILENCE, connect, follow, return_home
from penstock.core.once import ListHop, too_large
from penstock.core.raw_connection import RawConnection
from penstock.fallback import Destination, Fallback

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.outbox import Outbox, Spool

_log: Final = Log("penstock.lists")


class ListFallback(Fallback["ListDestination"]):
    """All lists of a server."""

    def __init__(self, url: str, outbox: "Outbox", name: str, redis: "Redis") -> None:
        self._url, self._name, self._redis = url, name, redis
        super().__init__(outbox.spools(server_of(url)))

    async def push(self, name: bytes, messages: list[bytes]) -> None:
        """Return once the server has ``messages``, or the disk. Raise ``DiskFull`` or ``WrongCall``."""
        await self._destination(name).add(messages)

    async def cut_if_silent(self) -> None:
        """Cut connections on which a reply is overdue."""
        for destination in tuple(self._destinations.values()):
            await destination.raw.cut_if_silent(MAX_SILENCE)

    def _new(self, name: bytes) -> "ListDestination":
        raw = RawConnection(connect(self._url, name=self._name))
        return ListDestination(raw, name, self._spools.of(name), self._spools.source, self._redis)


class ListDestination(Destination):
    """One list, with a connection of its own."""

    def __init__(self, raw: RawConnection, name: bytes, spool: "Spool", source: str, redis: "Redis") -> None:
        self.raw, self._redis = raw, redis
        super().__init__(decoded(name), spool, ListHop(raw, decoded(name), source), _log, "list")

    async def too_large(self, size: int) -> str | None:
        return await too_large(self._redis, size)

    async def lost(self, error: Exception) -> None:
        await self.raw.close()
        if isinstance(error, MovedError):
            await follow(error, self.raw.redis)
        elif isinstance(error, ConnectionError | TimeoutError):
            await return_home(self.raw.redis)

    async def leave(self) -> None:
        await self.raw.close()
        await self.raw.redis.aclose()


__all__ = ["ListFallback"]
