"""Fixtures for the tests of penstock shovel: a second server, and proxies to it."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from penstock.testing.server import EmbeddedServer
from tests.cli.shovel.moving import SMALLEST_LIMIT, ReplyGate
from tests.reliability.proxy import Proxy


@pytest.fixture(scope="session")
def there_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def there_url(there_server: EmbeddedServer) -> str:
    return there_server.url


@pytest.fixture
async def there(there_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(there_url) as client:
        await client.flushall()
        yield client


@pytest.fixture
def proxy(there_server: EmbeddedServer) -> Iterator[Proxy]:
    """Yield a proxy to the target that can be cut."""
    with Proxy(there_server.port) as started:
        yield started


@pytest.fixture
def gate(there_server: EmbeddedServer) -> Iterator[ReplyGate]:
    with ReplyGate(there_server.port) as started:
        yield started


@pytest.fixture
async def size_limited(there: Redis) -> AsyncIterator[Redis]:
    """Yield the target with messages limited to ``SMALLEST_LIMIT`` bytes."""
    await there.config_set("proto-max-bulk-len", SMALLEST_LIMIT)
    yield there
    await there.config_set("proto-max-bulk-len", 512 << 20)
