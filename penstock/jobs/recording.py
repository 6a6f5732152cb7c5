"""Has a few consumers of ours record what consumers of Node's publish of their streams."""

from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.core.script import Script
from penstock.jobs.keys import OURS, SILENT_MS
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance

RECORDERS: Final = 2
"""How many of our consumers do so: one may die."""
LEAST_SECONDS: Final = 1.0
"""Shortest time between two looks for consumers of Node's."""
_watch: Final = Script.read(Path(__file__).parent / "lua" / "watch.lua")


class Recording:
    """The part of ``consumer`` in it, for streams of ``node``; it looks every ``seconds`` whether it is wanted."""

    def __init__(self, servers: Servers, node: "Instance", consumer: str, seconds: float) -> None:
        self._servers, self._node, self._consumer = servers, node, consumer
        self._seconds = max(LEAST_SECONDS, seconds)
        self._look_at = dict[str, float]()
        """When (monotonic) to look again, by stream."""
        self._recorded = set[str]()

    async def look(self, stream: str) -> None:
        """Record what consumers of Node's publish, if there are any, unless enough others of ours do."""
        if self._look_at.get(stream, 0.0) > monotonic():
            return
        self._look_at[stream] = monotonic() + self._seconds
        keys = self._servers.keys
        is_wanted = await self._node.run(
            _watch,
            stream=keys.stream(stream),
            keepers=keys.keepers(stream),
            consumer=self._consumer,
            prefix=OURS,
            silent=SILENT_MS,
            lease=3 * self._seconds,
            most=RECORDERS,
        )
        if is_wanted and stream not in self._recorded:
            self._recorded.add(stream)
            self._servers.recorder(stream).add(stream)
        elif not is_wanted:
            await self._end(stream)

    async def _end(self, stream: str) -> None:
        if stream in self._recorded:
            self._recorded.discard(stream)
            await self._servers.recorder(stream).discard(stream)

    async def close(self) -> None:
        """Record no more."""
        keys = self._servers.keys
        for stream in tuple(self._recorded):
            await self._end(stream)
            with suppress(RedisError, OSError, PenstockError):
                if not self._node.is_away:
                    await self._node.command("ZREM", encoded(keys.keepers(stream)), self._consumer)
