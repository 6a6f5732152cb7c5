"""Who is let in by the gateway: secrets in a header, in the query, in the first frame."""

import asyncio
import json

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from penstock.base.errors import SettingsError, Unauthorized
from penstock.bus import Bus
from penstock.bus.federation.frames import SUBPROTOCOL
from services.gateway.access import Access
from services.gateway.listener import Listener
from services.gateway.login import WRONG_SECRET
from services.gateway.settings import Settings
from tests.bus.gateway import SECRET, bearer, ends, get, serving, status_of, url_of, works
from tests.bus.raw import Raw
from tests.support.harness import eventually


async def test_the_secret_is_in_a_header(gateway: Listener) -> None:
    url = url_of(gateway)
    assert await status_of(url, **bearer(SECRET)) == 101
    for wrong in (bearer("wrong"), bearer(SECRET + "x"), bearer(SECRET[:-1]), bearer(""), {}):
        assert await status_of(url, **wrong) == 401
    assert await status_of(url, additional_headers={"Authorization": f"Basic {SECRET}"}) == 401
    assert gateway.counters["unauthorized"] == 6


async def test_the_secret_in_the_query_needs_a_setting(gateway: Listener, redis_url: str) -> None:
    assert await status_of(f"{url_of(gateway)}?secret=not%20so%20secret") == 401
    async with serving(redis_url, accept_query_secret=True) as accepting:
        assert await status_of(f"{url_of(accepting)}?secret=not%20so%20secret") == 101
        assert await status_of(f"{url_of(accepting)}?a=b&secret=wrong") == 401
        assert await status_of(f"{url_of(accepting)}?secret") == 401


async def test_the_secret_is_in_the_first_frame(redis: "Redis", redis_url: str) -> None:
    async with serving(redis_url) as gateway:
        async with connect(url_of(gateway), subprotocols=[SUBPROTOCOL]) as connection:
            await connection.send(json.dumps({"secret": SECRET}))
            assert json.loads(await connection.recv()) == {"ok": True, "version": 2}
            peer = Raw(connection)
            await works(peer)
            await peer.end()
        for first in ('{"secret":"wrong"}', "nonsense", "[" * 5_000, '"secret"', '{"secret":7}', b"\x00" * 17):
            await _is_refused(gateway, first)
    async with serving(redis_url, first_message_timeout=1) as gateway:
        await _is_refused(gateway, None)


async def _is_refused(gateway: Listener, first: str | bytes | None) -> None:
    async with connect(url_of(gateway), subprotocols=[SUBPROTOCOL]) as connection:
        if first is not None:
            await connection.send(first)
        with pytest.raises(ConnectionClosed) as caught:
            await connection.recv()
        assert caught.value.rcvd
        assert caught.value.rcvd.code == WRONG_SECRET


async def test_BQ_D33_a_wrong_path_is_answered(gateway: Listener) -> None:
    assert await status_of(url_of(gateway) + "x", **bearer(SECRET)) == 404
    for path, status in (("/nothing", 404), ("/live", 200), ("/ready", 200)):
        assert await asyncio.to_thread(get, f"http://127.0.0.1:{gateway.port}{path}") == status


async def test_wrong_secrets_are_logged_once_in_a_while_with_their_number(redis: "Redis", redis_url: str) -> None:
    with capture_logs() as log:
        async with serving(redis_url) as gateway:
            for _ in range(20):
                await status_of(url_of(gateway), **bearer("wrong secret"))
            assert gateway.counters["unauthorized"] == 20
    assert len([line for line in log if line["event"] == "wrong secret"]) == 1


@ends
async def test_a_loop_ends_when_the_secret_was_changed(redis: "Redis", redis_url: str) -> None:
    async with serving(redis_url) as gateway, Bus(patience=60) as bus:
        queue = bus.federate(bus.queue("foo"), url_of(gateway), secret=SECRET)
        await queue.attach()

        async def take() -> None:
            async for _ in queue.consume(reliable=True):
                pass

        loop = asyncio.create_task(take())
        await eventually(lambda: queue.is_consuming)
        gateway.access = Access(gateway.settings.model_copy(update={"secret": "another secret"}))
        gateway.drop_all()
        with pytest.raises(Unauthorized):
            await loop


async def test_a_former_secret_lets_peers_in_until_it_is_removed(redis: "Redis", redis_url: str) -> None:
    both = f"{SECRET}, the new one\n{SECRET}\n"
    async with serving(redis_url, secret=both) as gateway:
        assert await status_of(url_of(gateway), **bearer(SECRET)) == 101
        assert gateway.counters["former_secret"] == 1
        assert await status_of(url_of(gateway), **bearer(f"{SECRET}, the new one")) == 101
        for wrong in ("", "the new one", f"{SECRET}, the new one {SECRET}"):
            assert await status_of(url_of(gateway), **bearer(wrong)) == 401
        assert gateway.counters["former_secret"] == 1
    async with serving(redis_url, secret=both.partition("\n")[0]) as gateway:
        assert await status_of(url_of(gateway), **bearer(SECRET)) == 401


@pytest.mark.parametrize("secret", ["long enough\nshort\n", "\n" * 8, "\r\n" * 8])
def test_each_line_of_the_secret_is_a_secret(secret: str) -> None:
    with pytest.raises(SettingsError, match="expected at least 8 characters in each line"):
        Settings.load(None, {"GATEWAY_REDIS": "redis://localhost", "GATEWAY_SECRET": secret})
