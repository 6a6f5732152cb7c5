"""Where a queue is found after a move: the first server that has it is enough; that none has it, all must say."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.base.errors import Unavailable
from penstock.bus import Bus
from penstock.bus.keys import metadata_key
from penstock.testing.server import EmbeddedServer
from tests.bus.given import attached
from tests.support.harness import eventually


@pytest.fixture
async def pair() -> AsyncIterator[list[EmbeddedServer]]:
    async with EmbeddedServer(aof=True) as one, EmbeddedServer(aof=True) as two:
        yield [one, two]


@pytest.mark.parametrize("down", [0, 1])
async def test_a_queue_is_located_unless_it_may_be_on_a_server_that_is_down(
    pair: list[EmbeddedServer], down: int
) -> None:
    async with Bus(pair[0].url) as alone:
        await attached(alone, "x")
    async with Bus(*(each.url for each in pair), patience=1 if down == 0 else 60) as bus:
        await eventually(lambda: all(each.is_up for each in bus.instances))
        await asyncio.to_thread(pair[down].stop)
        await eventually(lambda: not bus.instances[down].is_up)
        if down == 1:
            assert await bus.locate(metadata_key("foo")) is bus.instances[0]
        else:
            with pytest.raises(Unavailable, match=r"waited .* \(patience\)"):
                await bus.locate(metadata_key("foo"))
