"""What one peer of the gateway may have at most."""

import asyncio
import json

from redis.asyncio import Redis

from penstock.bus.federation.frames import call_line
from services.gateway.listener import Listener
from tests.bus.gateway import SECRET, bearer, serving, status_of, url_of, works
from tests.bus.raw import raw
from tests.support.harness import PATIENCE, eventually


async def test_BQ_D27_a_websocket_has_so_many_objects(redis: "Redis", redis_url: str) -> None:
    async with serving(redis_url, max_objects=2) as gateway, raw(gateway) as peer:
        first = await peer.create()
        await peer.create("queue", "bar")
        third = await peer.channel().send(json.dumps({"type": "queue", "methods": [], "args": ["x"]}))
        assert await third.next() == "closed"
        await first.send("", kind=b"2")
        await peer.create("queue", "x")


async def test_BQ_D27_there_are_so_many_websockets(redis: "Redis", redis_url: str) -> None:
    async with serving(redis_url, max_connections=1) as gateway:
        async with raw(gateway) as peer:
            await works(peer)
            assert await status_of(url_of(gateway), **bearer(SECRET)) == 503
        await eventually(lambda: gateway.counters["disconnections"] == 1)
        assert await status_of(url_of(gateway), **bearer(SECRET)) == 101


async def test_connections_that_ask_for_no_websocket_are_bounded(redis: "Redis", redis_url: str) -> None:
    async with serving(redis_url, max_connections=1, first_message_timeout=600) as gateway:
        drips = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(3)]
        try:
            assert await asyncio.wait_for(drips[2][0].read(), PATIENCE) == b""
        finally:
            for _, writer in drips:
                writer.close()


async def test_a_frame_that_is_too_long_ends_the_websocket(redis: "Redis", redis_url: str) -> None:
    async with serving(redis_url, max_frame=10_000) as gateway:
        async with raw(gateway) as peer:
            channel = await peer.create()
            await channel.send(call_line("push", ("x" * 20_000,)))
            await peer.connection.wait_closed()
            assert peer.connection.close_code == 1009
        async with raw(gateway) as peer:  # and neither may a line over several frames be
            channel = await peer.create()
            for _ in range(3):
                await channel.send("x" * 5_000)
            assert await channel.next() == "closed"
            await works(peer)


async def test_BQ_D27_messages_before_attach_are_bounded(gateway: Listener) -> None:
    async with raw(gateway) as peer:
        channel = await peer.create()
        await channel.send(b"".join(call_line("push", ("x",)) for _ in range(1_000)))
        assert (await channel.call("push", "one more"))[0].startswith("Full: ")
        assert await channel.call("attach") == [None, False]
        assert await channel.call("count") == [None, 1_000]
