"""Node's hfxbus 2.2.0 and ours at both ends of the same streams."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis.exceptions import ResponseError

from bench.peers.install import FromNpm
from tests.bus.node import EXPECT_SECONDS, Peer, Program, from_npm, started
from tests.support.harness import eventually

NODE: Final = "node"
PYTHON: Final = "python"
PAIRS: Final = ((NODE, NODE), (NODE, PYTHON), (PYTHON, NODE), (PYTHON, PYTHON))
"""Who produces, and who consumes. Two of Node are the reference."""
HFXBUS: Final = FromNpm({"hfxbus": "2.2.0"})


@asynccontextmanager
async def node() -> AsyncIterator[Program]:
    """Yield a program of Node's peers; skip the test where it cannot be had."""
    found = from_npm(HFXBUS)
    script = str(Path(__file__).with_name("hfx_peer.js"))
    async with started(NODE, *found.command, "--no-deprecation", script, **found.environment) as program:
        yield program


def python() -> AbstractAsyncContextManager[Program]:
    """Yield a program of our peers."""
    return started(PYTHON, sys.executable, "-m", "tests.jobs.peer")


STARTS: Final = {NODE: node, PYTHON: python}


class Programs:
    """A program of each kind, for many tests: one that has ended is started anew."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._running: dict[str, Program] = {}

    async def take(self, name: str) -> Program:
        """Return the program of Node's peers, or of ours."""
        if name not in self._running or not self._running[name].is_alive:
            self._running[name] = await self._stack.enter_async_context(STARTS[name]())
        return self._running[name]


@dataclass
class Pair:
    """A producer's end and a consumer's; ``servers`` are clients of ``urls``."""

    programs: tuple[Program, Program]
    servers: list[Any]
    urls: tuple[str, ...]

    @property
    def names(self) -> tuple[str, str]:
        """Return who is at both ends."""
        first, second = self.programs
        return first.name, second.name

    @asynccontextmanager
    async def _peer(self, program: Program, role: str, stream: str, **options: Any) -> AsyncIterator[Peer]:
        async with program.peer(role, stream, self.urls, **options) as peer:
            await peer.expect("ready")
            if role == "consumer":  # ours creates its group a bit later
                await eventually(partial(self._has_group, stream, **options))
            yield peer

    async def _has_group(self, stream: str, group: str, prefix: str = "hfxbus", route: str = "", **_: Any) -> bool:
        found = list[bytes]()
        for each in self.servers:
            with suppress(ResponseError):
                found += [each["name"] for each in await each.xinfo_groups(f"{prefix}:str:{stream}")]
        return found.count(f"{prefix}:csr:{group}".encode()) == (len(self.servers) if route == "*" else 1)

    def producer(self, stream: str, **options: Any) -> AbstractAsyncContextManager[Peer]:
        """Yield a producer of the first end that is ready."""
        return self._peer(self.programs[0], "producer", stream, **options)

    def consumer(self, stream: str, group: str, **options: Any) -> AbstractAsyncContextManager[Peer]:
        """Yield a consumer of the second end that is ready."""
        return self._peer(self.programs[1], "consumer", stream, group=group, **options)

    def beside(self, stream: str, group: str, **options: Any) -> AbstractAsyncContextManager[Peer]:
        """Yield a consumer of the first end that is ready."""
        return self._peer(self.programs[0], "consumer", stream, group=group, **options)


async def send(peer: Peer, id: str, value: Any, *groups: str, **call: Any) -> None:
    """Have a producer send a job, with ``value`` as its value ``in``, and wait until it is sent."""
    waits = {"wait_for": groups, "timeout": 10, "get": ["out"]} if groups else {}
    await peer.send(json.dumps({"id": id, "set": {"in": value}, **waits, **call}))
    await peer.expect("sent", id)


async def finished(peer: Peer, *ids: str) -> dict[str, tuple[Any, Any]]:
    """Wait until a producer has said of all jobs that they are finished; return groups and values of each."""

    def found() -> dict[str, tuple[Any, Any]]:
        return {event[1]: (event[2], event[3]) for event in peer.events if event[0] == "finished"}

    await eventually(lambda: set(ids) <= set(found()), EXPECT_SECONDS)
    return found()
