"""Each line of numbers has a ledger of its own: the number of another one is not taken for what has arrived."""

import asyncio
from pathlib import Path

import pytest

from penstock.base.errors import WrongCall
from penstock.bus import Bus
from penstock.outbox import Outbox
from penstock.testing.server import EmbeddedServer
from tests.bus.outboxes import attached, content, delivered, push


async def test_what_waits_on_disk_is_not_taken_for_what_the_same_outbox_has_pushed_by_another_name_of_the_bus(
    tmp_path: Path,
) -> None:
    """The servers of the bus are named in another order for a while, so that what waits does not go on."""
    async with EmbeddedServer() as one, EmbeddedServer() as two:
        async with Bus(one.url, two.url, outbox=tmp_path) as bus:
            queue = await attached(bus)
            await push(queue, 1)
            for server in (one, two):
                await asyncio.to_thread(server.stop)
            assert await push(queue, 2, 3) == [0, 0]
        for server in (one, two):
            await asyncio.to_thread(server.start)
        async with Bus(two.url, one.url, outbox=tmp_path) as bus:
            await push(await attached(bus), 4, 5, 6)
            await delivered(bus)
        async with Bus(one.url, two.url, outbox=tmp_path) as bus:
            await delivered(bus)
        assert sorted([*await content(one), *await content(two)])[-5:] == [2, 3, 4, 5, 6]


async def test_what_waits_on_disk_is_not_taken_for_what_an_earlier_queue_of_this_name_got_at_another_server(
    tmp_path: Path,
) -> None:
    """Its server is gone for good, and the other one, which takes its place, has a ledger of its own."""
    async with EmbeddedServer() as one, EmbeddedServer() as two:
        async with Bus(one.url, outbox=tmp_path) as bus:
            queue = await attached(bus)
            await push(queue, *range(100, 110))
            await queue.close()
        async with Bus(two.url) as alone:
            await attached(alone)
        async with Bus(one.url, two.url, outbox=tmp_path) as bus:
            queue = await attached(bus)
            assert await push(queue, 1) == [1]
            await asyncio.to_thread(two.stop)
            assert await push(queue, 2, 3) == [0, 0]
        async with Bus(one.url, outbox=tmp_path) as bus:
            await delivered(bus)
        assert await content(one) == [2, 3]


async def test_one_bus_of_a_server_uses_an_outbox_at_a_time(tmp_path: Path) -> None:
    """Two would number the same messages, and each would delete what the other has on disk."""
    async with EmbeddedServer() as server:
        async with Outbox(datadir=tmp_path) as outbox:
            async with Bus(server.url, outbox=outbox):
                with pytest.raises(WrongCall, match="is used for"):
                    await Bus(server.url, outbox=outbox).connect()
            async with Bus(server.url, outbox=outbox) as bus:
                assert await push(await attached(bus), 1) == [1]
        with pytest.raises(WrongCall, match="the outbox is closed"):
            await Bus(server.url, outbox=outbox).connect()
