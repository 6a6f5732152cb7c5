"""The right to move queues between servers, which one run has at a time."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from redis.exceptions import RedisError

from penstock.base.errors import Occupied, PenstockError
from penstock.bus.scripts import RELEASE, RENEW
from penstock.core.instance import Instance
from penstock.core.tasks import begin

MOVER: Final = b"bus:mover"
"""The key on each server that names the run."""
SECONDS: Final = 6
WAIT_SECONDS: Final = 2 * SECONDS
"""Longest wait for the lease of another run: that of a killed one has ended by then."""
LOOK_SECONDS: Final = 0.1


class Lease:
    """A lease on each of ``servers``, renewed meanwhile; ``lost`` is called if another run has got one of them."""

    def __init__(self, servers: Sequence[Instance], lost: Callable[[], None]) -> None:
        self._servers = sorted(servers, key=lambda each: each.url)  # in one order, so that no two wait for each other
        self._lost, self._who = lost, secrets.token_hex(8)
        self._renewing: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        """Wait for the leases of a killed run to end. Raise ``Occupied`` if another one lives."""
        begun = time.monotonic()
        try:
            for server in self._servers:
                while not await self._take(server):
                    if time.monotonic() - begun > WAIT_SECONDS:
                        raise Occupied(f"another move has {server.address}: wait for its end")
                    await asyncio.sleep(LOOK_SECONDS)
        except BaseException:
            await self._release()
            raise
        self._renewing = begin(self._renew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewing.cancel()
        await asyncio.wait({self._renewing})
        await self._release()

    async def _take(self, server: Instance) -> bool:
        """Take or renew the lease of one server. Return False if another run has it."""
        ended = await server.run(RENEW, leases=[MOVER], seconds=SECONDS, owners=[self._who])
        return 1 not in ended

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(SECONDS / 3)
            for server in self._servers:
                with suppress(RedisError, OSError, PenstockError):  # the move meets it as well, and reports it
                    if not await self._take(server):
                        self._lost()

    async def _release(self) -> None:
        for server in self._servers:
            with suppress(RedisError, OSError, PenstockError):  # then it ends by itself
                await server.run(RELEASE, lease=MOVER, who=self._who)
