"""Reliable reading of a list: messages are taken into a pending list of the taker, then settled or put back."""

import asyncio
import secrets
from math import inf
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from penstock.encoding import decoded, encoded
from penstock.script import Script
from penstock.transfer import LUA

_take, _put_back = (Script.read(LUA / f"{verb}.lua") for verb in ("take", "put_back"))

NAME: Final = "penstock-pull-"
"""Prefix of a taker's connection name, by which others see that it is alive."""


FULL_SERVER_SECONDS: Final = 0.2
"""Seconds between two reads of a list while the server is full."""


def new_taker() -> str:
    return secrets.token_hex(8)


class Pull:
    """One taker of ``source``; its client's connection must be named ``NAME`` + ``taker``.

    Keys: ``<source>:pull:<taker>`` holds messages taken and not settled, ``<source>:pulls`` the names of the takers.
    """

    def __init__(self, redis: "Redis", source: bytes, taker: str) -> None:
        self._redis, self._source, self._taker = redis, source, taker
        self.pending = self._pending_of(taker)
        self._takers = source + b":pulls"

    async def adopt(self) -> int:
        """Put back messages of dead takers, so that the oldest comes first again; return how many.

        Raise ``NoPermissionError`` if takers are recorded and this user may not list the connections.
        """
        takers = [decoded(taker) for taker in await self._redis.zrevrange(self._takers, 0, -1)]
        if not takers:
            return 0
        alive = {client.get("name") for client in await self._redis.client_list()}
        return sum([await self._put_back(taker, 0) for taker in takers if NAME + taker not in alive])

    async def take(self, batch: int, size: int) -> list[bytes]:
        """Settle what was taken before; return at most ``batch`` messages, oldest first.

        Take no more once they have ``size`` bytes together.
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
        """Return the next message, or [] if none arrives within ``seconds``; all before must be settled.

        A full server refuses this: return [] after ``FULL_SERVER_SECONDS``; the caller reads again with ``take``.
        """
        try:
            message = await self._redis.execute_command("BLMOVE", self._source, self.pending, "RIGHT", "LEFT", seconds)
        except OutOfMemoryError:
            await asyncio.sleep(FULL_SERVER_SECONDS)
            return []
        return [] if message is None else [message]

    async def end(self, settled: int) -> int:
        """Settle the oldest ``settled`` of the messages taken last and put back the others; return how many."""
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
