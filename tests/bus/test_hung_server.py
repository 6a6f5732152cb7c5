"""A server that takes calls and does not answer: a call ends when its patience does, and so does ``disconnect``."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from penstock.base.errors import Unavailable
from penstock.bus import Bus
from penstock.core import instance
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault, Timing
from penstock.testing.server import EmbeddedServer
from tests.bus.given import attached, lose_patience
from tests.support.harness import PATIENCE


@pytest.fixture
def hanging() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started
        os.kill(started.pid, signal.SIGCONT)  # so that it can obey SIGTERM


async def test_a_call_to_a_server_that_hangs_ends_with_its_patience(hanging: EmbeddedServer) -> None:
    async with Bus(hanging.url) as bus:
        queue = await attached(bus)
        lose_patience(bus, 1)
        os.kill(hanging.pid, signal.SIGSTOP)
        with pytest.raises(Unavailable):
            async with asyncio.timeout(PATIENCE):
                await queue.count()
        os.kill(hanging.pid, signal.SIGCONT)


@pytest.mark.parametrize("patience", [1, 3_600])
async def test_a_bus_leaves_a_server_that_hangs_in_bounded_time(hanging: EmbeddedServer, patience: int) -> None:
    bus = Bus(hanging.url)
    await bus.connect()
    for number in range(10):
        queue = await attached(bus, *map(str, range(50)), name=f"q{number}")
        loop = aiter(queue.consume())
        for _ in range(6):
            await anext(loop)
    lose_patience(bus, patience)
    os.kill(hanging.pid, signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE):
        await bus.disconnect()


async def test_a_connection_whose_first_question_is_not_answered_is_made_anew(
    hanging: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link may drop it while the server connects; nothing else would end that wait."""
    monkeypatch.setattr(instance, "MAX_SILENCE", 0.1)
    async with FaultProxy(int(hanging.url.rpartition(":")[2].partition("/")[0])) as link:
        link.fault = ProxyFault("ROLE", Timing.BEFORE, True, 0.0)
        async with asyncio.timeout(PATIENCE), Bus(f"redis://{link.address}/0"):
            assert link.fault is None
