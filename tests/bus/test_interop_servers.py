"""Several servers between Node's busmq and ours, in all four pairings: both find each object on the same server."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from penstock.bus.placement import busmq_index
from penstock.testing.server import EmbeddedServer
from tests.bus.pairs import PAIRS, Pair, Programs

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
HOMES = {"foo": 2, "zoo": 1, "orders": 0, "日本": 2, "😀": 0, "Ünïcödé": 1}
"""Queues and the place of each among three servers."""


@dataclass
class Spread(Pair):
    """A pair on three servers, with a client of each."""

    clients: "tuple[Redis, ...]"

    async def homes(self, pattern: str) -> list[int]:
        """Return the places of the servers that have such keys."""
        return [place for place, client in enumerate(self.clients) if await client.keys(pattern)]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[EmbeddedServer, ...]]:
    with EmbeddedServer() as one, EmbeddedServer() as two, EmbeddedServer() as three:
        yield one, two, three


@pytest_asyncio.fixture(loop_scope="session", params=PAIRS, ids="-".join)
async def spread(
    request: pytest.FixtureRequest, programs: Programs, servers: tuple[EmbeddedServer, ...]
) -> AsyncIterator[Spread]:
    first, second = [await programs.take(name) for name in request.param]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Redis.from_url(each.url, decode_responses=True)) for each in servers]
        for each in clients:
            await each.flushall()
        yield Spread((first, second), clients[0], tuple(each.url for each in servers), tuple(clients))


@pytest.mark.parametrize("name", HOMES)
async def test_a_new_queue_lives_where_both_look_for_it(spread: Spread, name: str) -> None:
    async with spread.first("push", name) as producer:
        await producer.send("x")
        await producer.expect("pushed", 1)
        assert await spread.homes(f"bus:queue:{name}:*") == [HOMES[name]]
        async with spread.second("consume", name) as consumer:
            await consumer.expect("attached", True)
            await consumer.expect("message", "x", 1)


async def test_a_queue_on_another_server_is_found_there(spread: Spread) -> None:
    async with spread.programs[0].peer("push", "foo", spread.urls[1:2]) as stray:
        await stray.send("x")
        await stray.expect("pushed", 1)
        async with spread.second("consume", "foo") as consumer, spread.first("push", "foo") as producer:
            await consumer.expect("message", "x", 1)
            await producer.send("y")
            await consumer.expect("message", "y", 2)
        assert await spread.homes("bus:queue:foo:*") == [1]


async def test_what_is_not_a_queue_is_found_by_both(spread: Spread) -> None:
    name = next(name for name in ("a", "b", "c") if busmq_index(f"bus:persisted:{name}", spread.urls) == 2)
    async with (
        spread.first("persist", name, attrs=["x"]) as writer,
        spread.second("persist", name, attrs=["x"]) as reader,
    ):
        await writer.send('{"x":1}')
        await writer.expect("saved")
        await reader.send('{"load":1}')
        await reader.expect("loaded", True, [1])
        assert await spread.homes("bus:persisted:*") == [2]
    async with spread.first("pubsub", "日本") as one, spread.second("pubsub", "日本") as two:
        await one.expect("subscribed")
        await two.expect("subscribed")
        await one.send("hi")
        await two.expect("message", "hi")
        subscribed = [await client.pubsub_channels("bus:pubsub:*") for client in spread.clients]
        assert subscribed == [["bus:pubsub:日本"], [], []]


async def test_both_ends_of_a_channel_may_be_on_different_servers(spread: Spread) -> None:
    async with (
        spread.first("connect", "room", local="a", remote="b") as client,
        spread.second("connect", "room", local="b", remote="a") as server,
    ):
        await client.expect("remote:connect")
        await server.expect("remote:connect")
        await client.send("ping")
        await server.expect("message", "ping")
        await server.send("pong")
        await client.expect("message", "pong")
        assert await spread.homes("bus:queue:channel:a:*") != await spread.homes("bus:queue:channel:b:*")


async def test_answers_come_from_whatever_server(spread: Spread) -> None:
    async with spread.second("serve", "echo"):
        for _ in range(4):  # each requester has a queue of a random name
            async with spread.first("request", "echo", reqTimeout=10_000) as requester:
                await requester.send(json.dumps({"x": 1}))
                await requester.expect("reply", None, {"echo": {"x": 1}})
