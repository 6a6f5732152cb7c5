"""Looks at a running composition again and again: at one that files describe, or at whatever has registered."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from penstock.cli._frame import Failed, connected
from penstock.cli._text import age
from penstock.composition.draw.sketch import Figures, Sketch
from penstock.composition.live.observed import Look, Looks
from penstock.composition.model import Place, Topology, server_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

SEARCH: Final = 15.0
"""Seconds between two searches, through all keys, for namespaces."""
NAME: Final = "penstock-map"
SILENCE: Final = 3.0
"""Seconds without a reply after which a server counts as out of reach, until the next look."""


class Observer:
    """``files`` is the composition; where it is None, what has registered on the server at ``url``."""

    def __init__(self, url: str, files: Topology | None, exits: AsyncExitStack) -> None:
        self._url, self._files, self._exits = url, files, exits
        self._clients: dict[str, Redis] = {}
        self._names: list[str] = []
        self._read_last = Topology(())
        self._search_at = 0.0
        self._looked = False
        self._looks = Looks()

    def know(self, redis: "Redis") -> None:
        """A client of the server at ``url``."""
        self._clients[server_of(self._url)] = redis

    async def look(self) -> Looks:
        """All looks so far, a new one included. Raises ``Failed`` where no server answers at the first."""
        found = Look(monotonic(), time())
        topology = self._files or await self._registered()
        urls = {end.place.server: end.url for _, end in topology.ends("reads", "writes", "keeps")}
        await asyncio.gather(*(self._at(server, url, topology, found) for server, url in urls.items()))
        if urls and len(found.silent) == len(urls) and not self._looked:
            raise Failed("\n".join(f"cannot reach {server}: {why}" for server, why in found.silent.items()))
        self._looked = True
        self._looks.add(topology, found)
        return self._looks

    async def _at(self, server: str, url: str, topology: Topology, found: Look) -> None:
        from penstock.composition.live.look import look
        from penstock.connection import connect

        client = self._clients.get(server)
        if client is None:
            client = self._clients[server] = connect(url, silence=SILENCE, name=NAME)
            self._exits.push_async_callback(client.aclose)
        if why := await _unanswered(look(client, topology, server, found)):
            found.silent[server] = why
            await client.connection_pool.disconnect()

    async def _registered(self) -> Topology:
        """What services say of themselves; what they said last where the server does not answer."""
        if self._looked:
            await _unanswered(self._read())
        else:
            await self._read()
        return self._read_last

    async def _read(self) -> None:
        from penstock.composition.live.registered import read
        from penstock.inspect.namespace import namespaces

        redis = self._clients[server_of(self._url)]
        if monotonic() >= self._search_at:
            self._names, self._search_at = await namespaces(redis), monotonic() + SEARCH
        self._read_last = await read(redis, self._url, self._names)
        if not self._read_last.parts:
            self._search_at = 0.0


@asynccontextmanager
async def observing(url: str, files: Topology | None) -> AsyncIterator[Observer]:
    """An observer, whose connections end with the block."""
    async with AsyncExitStack() as exits:
        observer = Observer(url, files, exits)
        if files is None:
            observer.know(await exits.enter_async_context(connected(url, silence=SILENCE, name=NAME)))
        yield observer


async def _unanswered(call: Awaitable[None]) -> str:
    """Why ``call`` did not succeed; empty where it did."""
    from redis.exceptions import RedisError

    from penstock.errors import WrongType

    try:
        async with asyncio.timeout(SILENCE):
            await call
    except TimeoutError:
        return f"no answer within {SILENCE:g} s"
    except (RedisError, WrongType, OSError) as error:
        return str(error)
    return ""


def sketch(looks: Looks) -> Sketch:
    """What the looks say, in words."""
    empty = Sketch(looks.topology)
    lists = {place: _figures(place, looks) for place in empty.places}
    busy = {part.namespace: _busy(part.namespace, looks) for part in empty.parts if part.namespace}
    return Sketch(looks.topology, lists, busy)


def _figures(place: Place, looks: Looks) -> Figures:
    sight = looks.sight(place)
    if sight.length is None:
        return Figures("out of reach" if place.server in looks.last.silent else "?")
    words = [f"{sight.length:,}"]
    words += [f"{_a_second(rate)} {way}" for rate, way in ((sight.arriving, "in"), (sight.leaving, "out")) if rate]
    if sight.arriving is None and sight.growth:
        words.append(f"{'+' if sight.growth > 0 else '-'}{_a_second(abs(sight.growth))}")
    if sight.oldest is not None and sight.length:
        words.append(f"oldest {'over ' if sight.at_least else ''}{age(sight.oldest)}")
    return Figures(", ".join(words), sight.piles_up)


def _busy(namespace: str, looks: Looks) -> str:
    service = looks.last.services.get(namespace)
    if service is None:
        return ""
    words = [f"{service.alive} alive"] * bool(service.alive) + [f"{service.late} late"] * bool(service.late)
    words = words or ["not running"]
    if rate := looks.taking(namespace):
        words.append(_a_second(rate))
    if service.pending:
        words.append(f"{service.pending:,} in hand")
    return ", ".join(words)


def _a_second(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
