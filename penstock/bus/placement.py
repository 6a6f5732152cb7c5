"""Which of several servers a new object is created on, and which has an existing one."""

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

from penstock.base.encoding import encoded
from penstock.base.errors import Refused, Unavailable
from penstock.base.urls import server_of
from penstock.core.instance import Instance
from penstock.core.patience import Patience

MAX_CACHED: Final = 100_000
"""Maximum number of names whose server is remembered."""
AWAY_SECONDS: Final = 0.5
"""Seconds between two looks whether a server that has not replied is away."""
LOCATE_SECONDS: Final = 0.03
"""Seconds between two looks at a queue that is being moved."""


class Placement(StrEnum):
    """How a name chooses its server among several."""

    BUSMQ = "busmq"
    """As busmq 3.1.0 does: by the sum of the key's UTF-16 code units. The order of the servers matters, and if one is
    added, most names change their place."""
    RENDEZVOUS = "rendezvous"
    """By the largest hash of server and key. If a server is added, one in n names changes its place; the order of the
    servers does not matter."""


def busmq_index(key: str, servers: Sequence[str]) -> int:
    """Return the place of ``key`` among ``servers`` as busmq 3.1.0 computes it."""
    units = key.encode("utf-16-le", "surrogatepass")
    return sum(units[at] | units[at + 1] << 8 for at in range(0, len(units), 2)) % len(servers)


def rendezvous_index(key: str, servers: Sequence[str]) -> int:
    """Return the place of ``key`` among the URLs ``servers``; user and password do not matter."""

    def weight(place: int) -> bytes:
        return blake2b(encoded(f"{server_of(servers[place])}\n{key}"), digest_size=16).digest()

    return max(range(len(servers)), key=weight)


INDEX: Final[dict[Placement, Callable[[str, Sequence[str]], int]]] = {
    Placement.BUSMQ: busmq_index,
    Placement.RENDEZVOUS: rendezvous_index,
}


class Homes:
    """The servers of a bus, by the keys that they have; ``place`` is where a new key comes, among their URLs."""

    def __init__(
        self, instances: Sequence[Instance], place: Callable[[str, Sequence[str]], int], patience: Patience
    ) -> None:
        self._instances, self._place, self._patience = instances, place, patience
        self._known: dict[str, Instance] = {}

    async def home(self, key: str, *, anew: bool = False) -> Instance:
        """Return the server that has ``key``, or that will: the first that says so, else by placement.

        If none has it, one that does not answer is waited for, since it may. With ``anew`` ask again.
        """
        if len(self._instances) == 1:
            return self._instances[0]
        if not anew and key in self._known:
            return self._known[key]
        found = await self._first(bool, "EXISTS", key)
        if found is None:
            return self._instances[self._placed(key)]
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        self._known[key] = self._instances[found]
        return self._known[key]

    async def seek(self, key: str) -> tuple[Instance, bool]:
        """As ``home``, for the metadata ``key`` of a queue, but do not wait; and whether the queue is known to exist.

        Raise ``ConnectionError`` if a server is away that may have it, and ``Refused`` while its queue is being moved.
        """
        if len(self._instances) == 1:
            return self._instances[0], False
        found, moves = await self._having(key, waits=False)
        if found is None and moves:
            raise Refused("the queue is being moved to another server")
        if found is not None:
            return self._instances[found], True
        found = await self._first(bool, "EXISTS", key, waits=False)
        return self._instances[self._placed(key) if found is None else found], False

    async def locate(self, key: str) -> Instance | None:
        """Return the server that has the metadata ``key``, None if none has; wait while its queue is being moved.

        The first that has it is enough; that none has it, all must say. Raise ``Unavailable`` if that takes longer
        than the patience, or if the bus is being disconnected.
        """
        begun = time.monotonic()
        async with self._patience.bounded(self._why):
            while True:
                found, moves = await self._having(key)
                if found is not None:
                    self._known[key] = self._instances[found]
                    return self._known[key]
                if not moves:
                    return None
                if time.monotonic() - begun > self._patience.most():
                    raise Unavailable(self._why())
                await asyncio.sleep(LOCATE_SECONDS)

    def forget(self, key: str) -> None:
        """Ask again for the server of ``key`` the next time."""
        self._known.pop(key, None)

    def clear(self) -> None:
        """Ask again for all."""
        self._known.clear()

    def _placed(self, key: str) -> int:
        return self._place(key, [each.url for each in self._instances])

    def _why(self) -> str:
        """Return why a queue is not found."""
        away = [f"{each.address}: {each.reason}" for each in self._instances if each.is_away]
        return "; ".join(away) or "a move of the queue has not ended: run `penstock bus move` again"

    async def _having(self, key: str, *, waits: bool = True) -> tuple[int | None, bool]:
        """Return the place of the first server that has the metadata ``key``, and whether one moves its queue away."""
        moves = False

        def is_there(reply: Any) -> bool:
            nonlocal moves
            ttl, moving = reply
            moves = moves or moving is not None
            return ttl is not None and moving is None

        return await self._first(is_there, "HMGET", key, "ttl", "moving", waits=waits), moves

    async def _first(
        self, wanted: Callable[[Any], bool], command: str, key: str, *words: str, waits: bool = True
    ) -> int | None:
        """Return the place of the first server whose reply is ``wanted``; None once all have replied otherwise.

        One that is away is passed over if a later one has such a reply.
        """
        asks = [each.command if waits else each.command_now for each in self._instances]
        asked = [asyncio.ensure_future(ask(command, encoded(key), *words)) for ask in asks]
        waiting = {*asked}
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, timeout=AWAY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for place, each in enumerate(asked):
                    if not each.done():
                        if not self._instances[place].is_away:
                            break
                    elif not each.exception() and wanted(each.result()):
                        return place
            for each in asked:
                each.result()  # raises if one has failed: it may have the key
            return None
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
