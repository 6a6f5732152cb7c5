"""Repeated sampling of a running composition: of one that files describe, or of all services that registered."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from penstock.base.encoding import counted
from penstock.base.shape import Place
from penstock.base.urls import server_of
from penstock.cli._frame import Failed, connected
from penstock.cli._text import age, shown
from penstock.composition.draw.sketch import Figures, Sketch
from penstock.composition.live.samples import Sample, Samples
from penstock.composition.model import Composition

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.inspect.waiting import Names, Waiting

SEARCH_SECONDS: Final = 15.0
"""Pause between two scans of all keys for namespaces."""
FIRST_SEARCH_SECONDS: Final = 2.0
"""How long the first sample waits for the search of lists, streams and queues."""
MAX_QUEUES: Final = 200
"""Lists, streams and queues of each kind that a sample reads."""
CLIENT_NAME: Final = "penstock-map"
REPLY_TIMEOUT: Final = 3.0
"""Seconds without a reply after which a server counts as unreachable until the next sample."""

WATCHED_SECONDS: Final = 5.0
"""Seconds from which it is worth saying that a message waits for longer than somebody has watched."""


class Observer:
    """``files`` is the composition; if None, the services that registered on the server at ``url`` are."""

    def __init__(self, url: str, files: Composition | None, exits: AsyncExitStack) -> None:
        self._url, self._files, self._exits = url, files, exits
        self._clients: dict[str, Redis] = {}
        self._names: list[str] = []
        self._read_last = Composition(())
        self._search_at = 0.0
        self._found: dict[str, Names] = {}
        self._searches: dict[str, asyncio.Task[None]] = {}
        self._searched: dict[str, float] = {}
        """When (monotonic) the last search of a server has ended."""
        self._sampled = False
        self._samples = Samples()

    def add_client(self, redis: "Redis") -> None:
        """Add a client of the server at ``url``."""
        self._clients[server_of(self._url)] = redis

    async def sample(self) -> Samples:
        """Take a sample and return all so far. Raise ``Failed`` if no server answers the first time."""
        from penstock.composition.live.sampling import registry_of

        found = Sample(monotonic(), time())
        composition = self._files or await self._registered()
        urls = {end.place.server: end.url for _, end in composition.ends("reads", "writes", "keeps")}
        urls |= {registry_of(part): part.urls[1] for part in composition.parts if part.urls[1]}
        if self._files is None:
            urls.setdefault(server_of(self._url), self._url)
        await asyncio.gather(*(self._at(server, url, composition, found) for server, url in urls.items()))
        if urls and len(found.unreachable) == len(urls) and not self._sampled:
            raise Failed("\n".join(f"cannot reach {server}: {why}" for server, why in found.unreachable.items()))
        self._sampled = True
        self._samples.add(composition, found)
        return self._samples

    async def _at(self, server: str, url: str, composition: Composition, found: Sample) -> None:
        from penstock.composition.live.sampling import sample_server
        from penstock.core.connection import connect

        client = self._clients.get(server)
        if client is None:
            client = self._clients[server] = connect(url, silence=REPLY_TIMEOUT, name=CLIENT_NAME)
            self._exits.push_async_callback(client.aclose)
        why = await _failure_of(sample_server(client, composition, server, found))
        why = why or await _failure_of(self._queues(client, composition, server, found))
        if why:
            found.unreachable[server] = why
            await client.connection_pool.disconnect()

    async def _queues(self, client: "Redis", composition: Composition, server: str, found: Sample) -> None:
        """Add what waits in lists, streams and queues of ``server``, which are searched for all the time."""
        from penstock.inspect.waiting import Names, read_waiting

        alive = {
            str(part.namespace): each.alive
            for part in composition.parts
            if part.server == server and (each := found.instances.get(str(part.namespace)))
        }
        search, is_first = self._searches.get(server), server not in self._searches
        if search is None or (search.done() and monotonic() - self._searched[server] >= SEARCH_SECONDS):
            search = self._searches[server] = asyncio.create_task(self._search(client, server, alive))
            self._exits.callback(search.cancel)
        if is_first:
            await asyncio.wait([search], timeout=FIRST_SEARCH_SECONDS)
        names = self._found.get(server, Names())
        read = await read_waiting(client, names, alive, most=MAX_QUEUES)
        found.queues += [each for some in read.values() for each in some if each.is_used]

    async def _search(self, client: "Redis", server: str, namespaces: "Collection[str]") -> None:
        from redis.exceptions import RedisError

        from penstock.inspect.waiting import find

        with suppress(RedisError, OSError):
            self._found[server] = await find(client, [*namespaces], patient=server in self._found)
        self._searched[server] = monotonic()

    async def _registered(self) -> Composition:
        """Return what has registered; what was read last if the server does not answer."""
        if self._sampled:
            await _failure_of(self._read())
        else:
            await self._read()
        return self._read_last

    async def _read(self) -> None:
        from penstock.composition.live.registered import read_registered
        from penstock.inspect.namespace import namespaces

        redis = self._clients[server_of(self._url)]
        if monotonic() >= self._search_at:
            self._names, self._search_at = await namespaces(redis), monotonic() + SEARCH_SECONDS
        self._read_last = await read_registered(redis, self._url, self._names)
        if not self._read_last.parts:
            self._search_at = 0.0


@asynccontextmanager
async def observing(url: str, files: Composition | None) -> AsyncIterator[Observer]:
    """Yield an observer; close its connections at the end of the block."""
    async with AsyncExitStack() as exits:
        observer = Observer(url, files, exits)
        if files is None:
            observer.add_client(
                await exits.enter_async_context(connected(url, silence=REPLY_TIMEOUT, name=CLIENT_NAME))
            )
        yield observer


async def _failure_of(call: Awaitable[None]) -> str:
    """Await ``call`` and return why it failed; empty if it succeeded."""
    from redis.exceptions import RedisError

    from penstock.base.errors import WrongType

    try:
        async with asyncio.timeout(REPLY_TIMEOUT):
            await call
    except TimeoutError:
        return f"no answer within {REPLY_TIMEOUT:g} s"
    except (RedisError, WrongType, OSError) as error:
        return str(error)
    return ""


def sketch_of(samples: Samples) -> Sketch:
    """Return the sketch of the last sample, with rates and ages as text."""
    empty = Sketch(samples.composition)
    lists = {place: _figures(place, samples) for place in empty.places}
    activity = {part.namespace: _activity(part.namespace, samples) for part in empty.parts if part.namespace}
    return Sketch(samples.composition, lists, activity)


def queue_words(each: "Waiting") -> str:
    """Return one list, stream or queue of programs in words."""
    name = f"{each.kind} {shown(each.queue)}" + (f" ({shown(each.group)})" if each.group else "")
    counts = ((each.waiting, "waiting"), (each.in_hand, "in hand"), (each.dead, "dead"))
    words = [f"{count:,} {what}" for count, what in counts if count]
    words += [f"oldest {age(each.oldest)}"] * (each.oldest is not None and bool(each.waiting))
    words += [] if each.workers is None else [counted(each.workers, "worker") if each.workers else "no worker"]
    return f"{name}  {', '.join(words)}"


def _figures(place: Place, samples: Samples) -> Figures:
    stats = samples.stats(place)
    if stats.length is None:
        return Figures("out of reach" if place.server in samples.last.unreachable else "?")
    words = [f"{stats.length:,}"]
    words += [f"{_per_second(rate)} {way}" for rate, way in ((stats.arriving, "in"), (stats.leaving, "out")) if rate]
    if stats.arriving is None and stats.growth:
        words.append(f"{'+' if stats.growth > 0 else '-'}{_per_second(abs(stats.growth))}")
    if stats.oldest is not None and stats.length and (stats.oldest >= WATCHED_SECONDS or not stats.at_least):
        words.append(f"oldest {'over ' if stats.at_least else ''}{age(stats.oldest)}")
    return Figures(", ".join(words), stats.piles_up)


def _activity(namespace: str, samples: Samples) -> str:
    service, instances = samples.last.services.get(namespace), samples.last.instances.get(namespace)
    words = []
    if instances:
        alive, late = instances.alive, instances.late
        words = [f"{alive} alive"] * bool(alive) + [f"{late} late"] * bool(late) or ["not running"]
    if rate := samples.taken_per_second(namespace):
        words.append(_per_second(rate))
    if service and service.pending:
        words.append(f"{service.pending:,} in hand")
    words += [f"waits: {shown(reason)}" for reason in (instances.waits if instances else ())]
    return ", ".join(words)


def _per_second(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
