"""``penstock.lists``: what a server answers is not taken for the loss of the connection."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Unavailable, Unsuitable
from penstock.lists import Lists
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock
from tests.support.harness import PATIENCE
from tests.support.redis_cluster import Node, two_nodes

PASSING = "LOADING", "BUSY", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "OOM", "NOREPLICAS", "MISCONF"


@asynccontextmanager
async def answering(server: EmbeddedServer, word: str) -> AsyncIterator[tuple[str, list[int]]]:
    """Yield the URL of a proxy that answers each LPUSH with an error for as long as the list has a number above 0."""
    left = [2]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_server = await asyncio.open_connection("127.0.0.1", server.port)
        back = asyncio.create_task(forward(theirs, writer))
        while data := await reader.read(1 << 16):
            if b"LPUSH" in data and left[0]:
                left[0] -= 1
                writer.write(f"-{word} as a test says\r\n".encode() * data.count(b"LPUSH"))
            else:
                to_server.write(data)
        to_server.close()
        await back
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as listening:
        yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0", left


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


@pytest.mark.parametrize("word", PASSING)
async def test_a_push_waits_for_what_passes(redis: "Redis", server: EmbeddedServer, word: str) -> None:
    async with answering(server, word) as (url, left), Lists(url, patience=PATIENCE) as lists:
        await asyncio.gather(*(lists["orders"].push(each) for each in "ab"))
        assert left == [0]
    assert sorted(await redis.lrange("orders", 0, -1)) == [b"a", b"b"]


async def test_a_push_of_a_server_that_loads_for_too_long_was_not_sent(redis: "Redis", server: EmbeddedServer) -> None:
    async with answering(server, "LOADING") as (url, left), Lists(url, patience=0.1) as lists:
        left[0] = 1 << 30
        with pytest.raises(Unavailable, match="patience"):
            await lists["orders"].push("a")
    assert await redis.keys() == []


@pytest.fixture(scope="module")
def started() -> Iterator[Node]:
    with two_nodes() as nodes:
        yield nodes[nodes[0].ask("KEYSLOT", "orders") >= 8192]


@pytest.fixture
def node(started: Node) -> Node:
    """Return the node of a cluster that has the list ``orders``, emptied first."""
    started.client.flushall()
    return started


async def test_a_list_without_a_hash_tag_is_refused_at_once_in_a_cluster(node: Node) -> None:
    url = f"redis://127.0.0.1:{node.server.port}/0"
    async with Lists(url, patience=None) as lists:
        await lists["orders"].push("a")
        with pytest.raises(Unsuitable, match=r"hash tag, as in \{orders\}"):
            await anext(lists["orders"].messages())
    node.client.rename("orders", "{orders}:in")
    with pytest.raises(Unsuitable, match=r"as in \{orders\}: .*bills"):
        await give_a_result(url, "bills")
    assert node.client.keys() == [b"{orders}:in"]
    await give_a_result(url, "{orders}:bills")
    assert node.client.keys() == [b"{orders}:bills"]


async def give_a_result(url: str, out: str) -> None:
    async with Lists(url, patience=None) as lists:
        async for message in lists["{orders}:in"].messages():
            with message:
                message.also_push(out, "b")
            break


async def test_the_command_line_says_the_same(node: Node) -> None:
    url = f"redis://127.0.0.1:{node.server.port}/0"
    node.client.lpush("orders", "a")
    with EmbeddedServer() as other:
        for words in (["pull", "orders"], ["shovel", url, "orders", other.url, "orders"]):
            ended = await penstock(*words, redis=url)
            assert ended.status == 1
            assert "hash tag, as in {orders}" in ended.error
            assert node.client.keys() == [b"orders"]
        async with Redis.from_url(other.url) as client:
            await client.lpush("far", "b")
        ended = await penstock("shovel", other.url, "far", url, "orders", redis=None)
    assert "hash tag, as in {orders}" in ended.error
    assert node.client.lrange("orders", 0, -1) == [b"a"]
