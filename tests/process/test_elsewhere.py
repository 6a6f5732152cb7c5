"""Registry and lists of a namespace on two servers: tools find the other server, or name the option for it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Blocking
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from penstock.cli._servers import beside
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock
from tests.support.harness import Service, until

NAMES = {"in_": "in", "pending": "pending", "out": ["a", "b"], "redis_namespace": "demo"}


@pytest.fixture(params=["database", "server"])
def registry_url(request: pytest.FixtureRequest, redis_url: str) -> Iterator[str]:
    """Yield another database of the same server, as in the original's sample, or another server."""
    if request.param == "database":
        yield redis_url.removesuffix("/0") + "/7"
    else:
        with EmbeddedServer() as other:
            yield other.url


@pytest.fixture
async def hop(redis: Redis, redis_url: str, registry_url: str, tmp_path: Path) -> AsyncIterator[Redis]:
    """Run an mpush that has moved a message; yield a client of its registry."""
    settings = NAMES | {"redis": redis_url, "service_redis": registry_url}
    async with Redis.from_url(registry_url) as registry:
        await registry.flushdb()
        with Service("mpush", tmp_path / "log", **settings):
            await redis.lpush("in", "message")
            while not await redis.llen("a"):
                await asyncio.sleep(0.02)
            yield registry


@pytest.mark.parametrize("words", [["status", "demo", "--json"], ["audit", "demo"], ["dead", "demo"]], ids=" ".join)
@pytest.mark.usefixtures("hop")
async def test_a_tool_finds_the_other_server(redis_url: str, registry_url: str, words: list[str]) -> None:
    from_lists, from_registry = [await penstock(*words, redis=url) for url in (redis_url, registry_url)]
    assert (from_lists.status, from_lists.error) == (from_registry.status, from_registry.error) == (0, "")
    if words[0] == "status":
        for output in (from_lists.json, from_registry.json):
            assert [one["service"] for one in output["instances"]] == ["mpush"]
            assert {"name": "a", "role": "out", "type": "list", "length": 1, "oldest": None} in output["lists"]
            assert output["metrics"]["delivered"]["count"] == "2"
    else:
        assert from_lists.text == from_registry.text


async def test_stop_finds_the_other_server(hop: Redis, redis_url: str) -> None:
    result = await penstock("stop", "demo", "--all", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert not await hop.exists("demo:1")


async def test_no_password_is_stored(redis: Any, redis_url: str, registry_url: str, hop: Any) -> None:
    stored = [await redis.get("demo:shape"), *(await hop.hgetall("demo:1")).values()]
    assert b"@" not in b"".join(stored)
    assert redis_url.partition("//")[2].replace("127.0.0.1", "localhost").encode() in stored
    assert registry_url.partition("//")[2].replace("127.0.0.1", "localhost").encode() in stored[0]


async def test_an_unreachable_server_is_named_with_the_option(redis: Any, redis_url: str, hop: Any) -> None:
    shape = (await redis.get("demo:shape")).decode()
    server = shape.partition('"registry": "')[2].partition('"')[0]
    await redis.set("demo:shape", shape.replace(server, "127.0.0.1:1/0"))
    result = await penstock("status", "demo", redis=redis_url)
    assert result.status == 1
    there = "of demo are on another server, 127.0.0.1:1/0: name it with"
    assert f"the registrations {there} --service-redis URL" in result.error
    await hop.hset("demo:1", "lists", "127.0.0.1:1/0")
    registry = hop.connection_pool.connection_kwargs
    result = await penstock("audit", "demo", redis=f"redis://127.0.0.1:{registry['port']}/{registry.get('db', 0)}")
    assert result.status == 1
    assert f"the lists {there} --redis URL" in result.error


@pytest.mark.parametrize(
    ("lists", "registrations"),
    [
        ("redis://127.0.0.1:{port}/0", "redis://127.0.0.1:{port}?db=1"),
        ("redis://127.0.0.1:{port}?db=3", "redis://127.0.0.1:{port}/1?db=2"),
        ("redis://[::ffff:127.0.0.1]:{port}/0", "redis://127.0.0.1:{port}/1"),
        ("unix://{socket}?db=1", "redis://localhost:{port}/0"),
        ("redis://localhost:{port}", "unix://{socket}?db=2"),
    ],
)
async def test_the_other_server_is_found_however_its_url_is_written(
    lists: str, registrations: str, tmp_path: Path
) -> None:
    with EmbeddedServer(unixsocket=str(tmp_path / "s")) as server, ExitStack() as ends:
        here, there = (url.format(port=server.port, socket=tmp_path / "s") for url in (lists, registrations))
        redis = ends.enter_context(Blocking.from_url(here))
        if "ffff" in here and not reachable(redis):
            pytest.skip("this machine has no IPv6")
        service = ends.enter_context(Service("mpush", tmp_path / "log", **NAMES, redis=here, service_redis=there))
        redis.lpush("in", "message")
        until(lambda: redis.llen("a") == 1)
        for url in (here, there):
            for words in (["status", "demo"], ["audit", "demo"]):
                result = await penstock(*words, redis=url)
                assert (result.status, result.error) == (0, ""), words
        result = await penstock("stop", "demo", "--all", redis=here)
        assert (result.status, result.error) == (0, "")
        assert await asyncio.to_thread(service.wait) == 0


def reachable(redis: Blocking) -> bool:
    with suppress(ConnectionError):
        return bool(redis.ping())
    return False


@pytest.mark.parametrize(
    ("url", "server", "expected"),
    [
        ("redis://u:p@h:7000/1?x=1", "h:7000/0", "redis://u:p@h:7000/0?x=1"),
        ("rediss://:p@h/1", "h:6379/2", "rediss://:p@h/2"),
        ("redis://u:p@h:7000/1", "evil:7000/1", "redis://evil:7000/1"),
        ("redis://u:p@h:7000/1", "h:7001/1", "redis://h:7001/1"),
        ("redis://u:p@h:7000/1", "/run/redis.sock/1", "unix:///run/redis.sock?db=1"),
        ("unix:///run/redis.sock", "h:7001/1", "redis://h:7001/1"),
        ("unix://:p@/run/redis.sock?db=1", "/run/redis.sock/0", "unix://:p@/run/redis.sock?db=0"),
        ("redis://u:p@h:7000?db=1", "h:7000/0", "redis://u:p@h:7000/0"),
        ("redis://u:p@[::1]:7000/1", "localhost:7000/0", "redis://u:p@[::1]:7000/0"),
        ("redis://u:p@h:7000/1", "[2001:db8::1]:7000/1", "redis://[2001:db8::1]:7000/1"),
        ("redis+sentinel://u:p@a,b/main", "a:26379,b:26379/main/1", "redis+sentinel://u:p@a,b/main?db=1"),
    ],
)
def test_a_login_is_sent_to_no_server_that_data_names(url: str, server: str, expected: str) -> None:
    assert beside(url, server) == expected
