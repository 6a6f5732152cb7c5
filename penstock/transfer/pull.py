"""Taking messages from a list so that none is lost on the way: taken into a list of one's own, settled, or put back."""

import asyncio
import secrets
from math import inf
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from penstock.encoding import decoded, encoded
from penstock.script import LUA, Script

_take, _put_back = (Script.read(LUA / f"{verb}.lua") for verb in ("take", "put_back"))

NAME: Final = "penstock-pull-"
"""Pulls are told alive from dead by the names of the server's connections."""


FULL: Final = 0.2
"""Seconds between two looks at a list while the server is full."""


def new_taker() -> str:
    return secrets.token_hex(8)


class Pull:
    """One taker of ``source``; its client's connection must be named ``NAME`` + ``taker``.

    Keys: ``<source>:pull:<taker>`` holds what it has taken and not settled, ``<source>:pulls`` the names of the takers.
    """

    def __init__(self, redis: "Redis", source: bytes, taker: str) -> None:
        self._redis, self._source, self._taker = redis, source, taker
        self.pending = self._pending_of(taker)
        self._takers = source + b":pulls"

    async def adopt(self) -> int:
        """Put back what dead pulls have left, so that the oldest goes first again; returns how many messages.

        Raises ``NoPermissionError`` where something was left and this user may not list the connections.
        """
        takers = [decoded(taker) for taker in await self._redis.zrevrange(self._takers, 0, -1)]
        if not takers:
            return 0
        alive = {client.get("name") for client in await self._redis.client_list()}
        return sum([await self._put_back(taker, 0) for taker in takers if NAME + taker not in alive])

    async def take(self, batch: int, size: int) -> list[bytes]:
        """At most ``batch`` messages, oldest first; what was taken before is settled in the same step.

        ``size``: no further message once they have so many bytes together.
        """
        taken: list[bytes] = await _take(
            self._redis,
            source=self._source,
            pending=self.pending,
            takers=self._takers,
            taker=self._taker,
            batch=batch,
            bytes=size,
        )
        return taken

    async def wait(self, seconds: float) -> list[bytes]:
        """The next message, if one comes in that time; nothing else may be unsettled.

        A full server refuses to wait: return [] after ``FULL`` seconds, to look again with ``take``.
        """
        try:
            message = await self._redis.execute_command("BLMOVE", self._source, self.pending, "RIGHT", "LEFT", seconds)
        except OutOfMemoryError:
            await asyncio.sleep(FULL)
            return []
        return [] if message is None else [message]

    async def end(self, settled: int) -> int:
        """Settle the oldest ``settled`` of those taken last and put back the others; returns how many went back."""
        return await self._put_back(self._taker, settled)

    async def _put_back(self, taker: str, settled: int) -> int:
        back: int = await _put_back(
            self._redis,
            pending=self._pending_of(taker),
            source=self._source,
            takers=self._takers,
            who=taker,
            settled=settled,
            most=inf,
            bytes=inf,
        )
        return back

    def _pending_of(self, taker: str) -> bytes:
        return self._source + b":pull:" + encoded(taker)
