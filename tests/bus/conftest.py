"""Fixtures for the bus: one that is connected to the server of the session, and pairs with Node's busmq."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from penstock.bus import Bus
from penstock.testing.server import EmbeddedServer
from services.gateway.listener import Listener
from tests.bus.gateway import serving
from tests.bus.node import busmq
from tests.bus.pairs import PAIRS, Pair, Programs
from tests.bus.sites import Site, reached


@pytest.fixture
async def bus(redis: "Redis", redis_url: str) -> AsyncIterator[Bus]:
    async with Bus(redis_url, patience=30) as connected:
        yield connected


@pytest.fixture(scope="module")
def two() -> Iterator[list[str]]:
    with EmbeddedServer() as one, EmbeddedServer() as other:
        yield [one.url, other.url]


@pytest.fixture
async def servers(two: list[str]) -> AsyncIterator[list["Redis"]]:
    async with Redis.from_url(two[0]) as one, Redis.from_url(two[1]) as other:
        await one.flushall()
        await other.flushall()
        yield [one, other]


@pytest.fixture(scope="session")
def shared_server() -> Iterator[EmbeddedServer]:
    """Yield a server for Node: nobody flushes its scripts, which Node does not load again."""
    with EmbeddedServer() as started:
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def programs() -> AsyncIterator[Programs]:
    """Yield a program of Node's peers and one of ours, for all tests; skip the test without Node."""
    busmq()
    async with AsyncExitStack() as stack:
        yield Programs(stack)


@pytest_asyncio.fixture(loop_scope="session", params=PAIRS, ids="-".join)
async def pair(
    request: pytest.FixtureRequest, programs: Programs, shared_server: EmbeddedServer
) -> AsyncIterator[Pair]:
    """Yield each pairing of Node and Python, on an empty server."""
    first, second = [await programs.take(name) for name in request.param]
    async with Redis.from_url(shared_server.url, decode_responses=True) as redis:
        await redis.flushall()
        yield Pair((first, second), redis, (shared_server.url,))


@pytest.fixture
async def gateway(redis: "Redis", redis_url: str) -> AsyncIterator[Listener]:
    async with serving(redis_url) as listener:
        yield listener


@pytest.fixture(params=["here", "gateway", "node"])
async def site(request: pytest.FixtureRequest, redis: "Redis", redis_url: str) -> AsyncIterator[Site]:
    async with reached(request.param, redis_url) as found:
        yield found
