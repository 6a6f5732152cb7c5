"""Publishes completions on the server of their stream, where jobs were done on another one."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.core.script import Script
from penstock.core.tasks import Tasks
from penstock.jobs.keys import CAPACITY
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance

CANCELLED: Final = "-"
"""What stands for the group of completions of jobs that were cancelled, where another server publishes them."""
_complete: Final = Script.read(Path(__file__).parent / "lua" / "complete.lua")
_log: Final = Log("penstock.jobs")


class Forwarding:
    """Publishes what ``node`` has for other servers of a group, while more is settled."""

    def __init__(self, servers: Servers, node: "Instance", group: str) -> None:
        self._servers, self._node, self._group = servers, node, group
        self._tasks = Tasks(_log)
        self._running = dict[str, asyncio.Task[None]]()
        self._wanted = set[str]()

    def forward(self, stream: str) -> None:
        """Publish completions on the server of ``stream``, if that is another one."""
        if self._servers.node(stream) is not self._node:
            self._wanted.add(stream)
            if stream not in self._running:
                self._running[stream] = self._tasks.begin(self._forward(stream))

    async def _forward(self, stream: str) -> None:
        try:
            while stream in self._wanted:
                self._wanted.discard(stream)
                for group in (self._group, CANCELLED):
                    await forward_completions(self._servers, self._node, stream, group)
        except (RedisError, OSError, PenstockError) as error:
            _log.warning("completions wait for the server of their stream", stream=stream, reason=str(error))
        finally:
            self._running.pop(stream, None)

    def under_way(self) -> list[asyncio.Task[None]]:
        """Return what publishes on servers that are there."""
        return [task for stream, task in self._running.items() if not self._servers.node(stream).is_away]

    async def close(self) -> None:
        """Publish nothing more; what is left is published by others of the group."""
        await self._tasks.cancel()


async def forward_completions(servers: Servers, node: "Instance", stream: str, group: str) -> None:
    """Publish completions that ``node`` has for the server of a stream, if that is another one."""
    target = servers.node(stream)
    if target is node:
        return
    key = encoded(servers.keys.of_group(stream, group)["forward"])
    while found := await node.command("XRANGE", key, "-", "+", "COUNT", 100):
        words = list[bytes]()
        for entry, fields in found:
            named = dict(zip(fields[::2], fields[1::2], strict=True))
            words += [entry, named[b"job"], named[b"channel"], named[b"msg"]]
        await target.run(
            _complete,
            done=servers.keys.done(stream),
            forwarded=servers.keys.forwarded(stream),
            capacity=CAPACITY,
            source=f"{servers.nodes.index(node)} {group}",
            words=words,
        )
        await node.command("XDEL", key, *[entry for entry, _ in found])
