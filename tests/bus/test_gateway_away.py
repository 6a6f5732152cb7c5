"""The gateway while the server of its bus is away."""

import asyncio
import time

from penstock.bus import Bus
from penstock.testing.server import EmbeddedServer
from services.gateway.service import Gateway
from services.gateway.settings import Settings
from tests.bus.gateway import SECRET, url_of
from tests.bus.raw import raw
from tests.support.harness import eventually

AWAY = "Unavailable: the servers behind the gateway do not answer"


async def test_calls_wait_for_a_server_that_is_away_at_the_start_and_for_longer_than_patience() -> None:
    with EmbeddedServer() as server:
        server.stop()
        settings = Settings(redis=server.url, listen_host="127.0.0.1", listen_port=0, secret=SECRET, patience=1)
        async with Gateway().lifespan(settings) as gateway, raw(gateway) as peer, Bus(patience=30) as bus:
            channel, begun = await peer.create(), time.monotonic()
            for _ in range(2):
                assert await channel.call("exists") == [AWAY]
            assert time.monotonic() - begun > 1.5, "each call waits for the server"
            queue = bus.federate(bus.queue("foo"), url_of(gateway), secret=SECRET)
            server.restart()
            await eventually(lambda: gateway.bus.is_online)
            while (found := await channel.call("exists")) == [AWAY]:  # it has little patience
                pass
            assert found == [None, False]
            assert await queue.attach() is False
            server.stop()
            await eventually(lambda: not gateway.bus.is_online)
            counting = asyncio.ensure_future(bus.federate(bus.queue("bar"), url_of(gateway), secret=SECRET).exists())
            server.restart()
            assert await counting is False
