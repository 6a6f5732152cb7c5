"""What every test may ask for: a server of the tests' own and a clean client."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from penstock.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One server for all tests that do not break it; each test starts with nothing in it."""
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def redis_url(server: EmbeddedServer) -> str:
    return server.url


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator["Redis"]:
    async with Redis.from_url(redis_url) as client:
        await client.flushall()
        yield client
