"""All tools that read work while the server's memory is full, when they are needed most."""

from collections.abc import Awaitable, Callable, Iterator

import pytest
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from tests.scripts.scrape import exporting, get, scrape
from tests.support.commandline import penstock, running
from tests.support.hop import Start
from tests.support.membership import register
from tests.support.servers import KINDS, started

Fill = Callable[[], Awaitable[object]]


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    with started(request.param) as server:
        yield server


@pytest.fixture
async def busy(redis: Redis, start: Start) -> None:
    """Set up namespace ``demo`` with an instance, three messages in flight and two waiting ones."""
    hop = await start()
    await hop.push("1", "2", "3")
    await register(redis, "demo", "2")
    await redis.lpush("out0", "4", "5")


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["status"], "demo"),
        (["status", "demo"], "work in"),
        (["status", "demo", "--json"], '"length"'),
        (["audit", "demo"], "conserved"),
        (["explain", "demo", "2"], "in flight"),
        (["trace", "demo", "2"], "registered"),
        (["dead", "demo"], ""),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
async def test_a_tool_works_while_the_server_is_full(
    redis_url: str, fill: Fill, words: list[str], expected: str
) -> None:
    await fill()
    result = await penstock(*words, redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert expected in result.text


@pytest.mark.usefixtures("busy")
async def test_stop_deletes_a_registration_while_the_server_is_full(redis: Redis, redis_url: str, fill: Fill) -> None:
    await fill()
    result = await penstock("stop", "demo", "2", "--wait", "0", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert not await redis.exists(Keys("demo").instance("2"))


@pytest.mark.usefixtures("busy")
async def test_metrics_show_every_length_while_the_server_is_full(redis: Redis, fill: Fill) -> None:
    async with exporting(redis) as exporter:
        before = await scrape(exporter)
        await fill()
        found = await scrape(exporter)
        assert (await get(exporter, "/ready")).status == 200
    assert before.names == found.names
    assert found("up") == 1
    assert found("in_flight") == 3
    assert found("list_length", list="out0", role="out") == 2


async def test_pull_takes_while_the_server_is_full(redis: Redis, redis_url: str, fill: Fill) -> None:
    await redis.lpush("box", "a", "b", "c")
    await fill()
    result = await penstock("pull", "box", "--limit", "2", redis=redis_url)
    assert (result.status, result.text) == (0, "a\nb\n")
    assert await redis.lrange("box", 0, -1) == [b"c"]


async def test_pull_follows_while_the_server_is_full(redis: Redis, redis_url: str, fill: Fill) -> None:
    await redis.lpush("box", "a")
    await fill()
    async with running("pull", "box", "--follow", redis=redis_url) as process:
        assert process.stdout
        assert await process.stdout.readline() == b"a\n"
        await redis.config_set("maxmemory", 0)
        await redis.lpush("box", "b")
        assert await process.stdout.readline() == b"b\n"
