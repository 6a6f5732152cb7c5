"""Fixtures for jobs: a client of the server of the session, several servers, and pairs with Node's hfxbus."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from penstock.jobs import Jobs
from penstock.testing.server import EmbeddedServer
from tests.bus.node import from_npm
from tests.jobs.given import look_every
from tests.jobs.pairs import HFXBUS, PAIRS, Pair, Programs


@pytest.fixture
async def jobs(redis: "Redis", redis_url: str) -> AsyncIterator[Jobs]:
    async with Jobs(redis_url, patience=30) as connected:
        yield connected


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let consumers look after what waits once an hour: what is done sooner is done since they have heard of it."""
    look_every(monkeypatch, 3_600)


@pytest.fixture(scope="session")
def three() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer()) for _ in range(3)]


@pytest.fixture
async def servers(three: list[EmbeddedServer]) -> AsyncIterator[list["Redis"]]:
    """Yield clients of two servers, emptied first."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(Redis.from_url(each.url)) for each in three[:2]]
        for each in found:
            await each.flushall()
        yield found


@pytest.fixture
async def two(three: list[EmbeddedServer], servers: list["Redis"]) -> AsyncIterator[Jobs]:
    """Yield a client of two servers; the stream ``a`` is on the second one, the stream ``concat`` on the first one."""
    async with Jobs(*(each.url for each in three[:2]), patience=30) as connected:
        yield connected


@asynccontextmanager
async def _paired(names: tuple[str, str], programs: Programs, servers: list[EmbeddedServer]) -> AsyncIterator[Pair]:
    first, second = [await programs.take(name) for name in names]
    async with AsyncExitStack() as stack:
        urls = tuple(each.url for each in servers)
        clients = [await stack.enter_async_context(Redis.from_url(url)) for url in urls]
        for each in clients:
            await each.flushall()
        yield Pair((first, second), clients, urls)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def programs() -> AsyncIterator[Programs]:
    """Yield a program of Node's peers and one of ours, for all tests; skip the test without Node."""
    from_npm(HFXBUS)
    async with AsyncExitStack() as stack:
        yield Programs(stack)


@pytest_asyncio.fixture(loop_scope="session", params=PAIRS, ids="-".join)
async def pair(request: pytest.FixtureRequest, programs: Programs, three: list[EmbeddedServer]) -> AsyncIterator[Pair]:
    """Yield each pairing of Node and Python, on one empty server."""
    async with _paired(request.param, programs, three[:1]) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session", params=PAIRS, ids="-".join)
async def pair_of_three(
    request: pytest.FixtureRequest, programs: Programs, three: list[EmbeddedServer]
) -> AsyncIterator[Pair]:
    """Yield each pairing on three empty servers."""
    async with _paired(request.param, programs, three) as found:
        yield found
