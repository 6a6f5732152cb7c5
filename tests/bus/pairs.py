"""Two programs of peers at both ends of the same keys, and what they leave behind in Redis."""

import asyncio
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from tests.bus.node import EXPECT_SECONDS, Peer, Program, node, started

NODE: Final = "node"
PYTHON: Final = "python"
PAIRS: Final = ((NODE, NODE), (NODE, PYTHON), (PYTHON, NODE), (PYTHON, PYTHON))
"""Who is at the first end, usually the producer, and who at the second. Two of Node are the reference."""


def python() -> AbstractAsyncContextManager[Program]:
    """Yield a program of our peers."""
    return started(PYTHON, sys.executable, "-m", "tests.bus.peer")


STARTS: Final = {NODE: node, PYTHON: python}


@dataclass
class Pair:
    """Two ends on the same server: ``first`` and ``second`` are peers of them; ``redis`` is the server's client."""

    programs: tuple[Program, Program]
    redis: "Redis"
    urls: tuple[str, ...]

    @property
    def names(self) -> tuple[str, str]:
        """Return who is at both ends."""
        first, second = self.programs
        return first.name, second.name

    def first(self, role: str, name: str, **options: Any) -> AbstractAsyncContextManager[Peer]:
        """Yield a peer of the first end."""
        return self.programs[0].peer(role, name, self.urls, **options)

    def second(self, role: str, name: str, **options: Any) -> AbstractAsyncContextManager[Peer]:
        """Yield a peer of the second end."""
        return self.programs[1].peer(role, name, self.urls, **options)

    async def left(self) -> dict[str, Any]:
        """Return all keys and their values, of a list of pairs the pairs."""
        return {key: await self._value(key) for key in sorted(map(str, await self.redis.keys("*")))}

    async def becomes(self, key: str, value: Any) -> None:
        """Wait until ``key`` holds ``value``, None for nothing."""
        found = None
        try:
            async with asyncio.timeout(EXPECT_SECONDS):
                while (found := (await self.left()).get(key)) != value:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"expected {value} in {key}, found {found}") from None

    async def ttls(self) -> set[int]:
        """Return the ttls (s) of all keys."""
        return {await self.redis.ttl(key) for key in await self.redis.keys("*")}

    async def lives_for(self, ttl: int) -> None:
        """Check that all keys have ``ttl`` (s), of which some may have passed on a busy machine."""
        assert all(ttl / 2 <= each <= ttl for each in await self.ttls())

    async def _value(self, key: str) -> Any:
        kind = await self.redis.type(key)
        if kind == "hash":
            return await self.redis.hgetall(key)
        if kind == "list":
            words = [str(word) for word in await self.redis.lrange(key, 0, -1)]
            return list(zip(map(int, words[::2]), words[1::2], strict=True))
        return await self.redis.get(key)


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


def pairs_of(*, first: str | None = None, second: str | None = None) -> list[tuple[str, str]]:
    """Return the pairings with the given ends."""
    return [each for each in PAIRS if first in (None, each[0]) and second in (None, each[1])]


def metadata(ttl: int = 30, maxsize: int = 0, discover: str = "false", **fields: str) -> dict[str, str]:
    """Return the metadata of a queue."""
    return {"ttl": str(ttl), "source": "local", "discover": discover, "maxsize": str(maxsize), **fields}


def ids(peer: Peer) -> list[int]:
    """Return the ids of the messages that ``peer`` got."""
    return [event[2] for event in peer.events if event[0] == "message"]


async def pushed(peer: Peer, *texts: str) -> None:
    """Have ``peer``, of the role push, push ``texts``, and wait until they are."""
    for text in texts:
        await peer.send(text)
    for _ in texts:
        await peer.expect("pushed")
