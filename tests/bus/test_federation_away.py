"""A federated object whose site is away, or answers nothing: what waits is bounded, in number and in time."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs
from websockets.asyncio.server import ServerConnection, serve

from penstock.base.errors import Unavailable, Unconfirmed, WrongCall
from penstock.bus import Bus
from penstock.bus.federation.frames import HEADER
from tests.bus.gateway import SECRET, serving, url_of
from tests.support.harness import PATIENCE, eventually

NOWHERE = "ws://localhost:9/bus"


@pytest.mark.parametrize(("options", "why"), [({}, "secret"), ({"secret": None}, "secret"), ({"secrt": "x"}, "secrt")])
async def test_options_that_make_no_sense_are_refused_at_once(options: dict[str, Any], why: str) -> None:
    async with Bus() as bus:
        with pytest.raises(WrongCall, match=why):
            bus.federate(bus.queue("foo"), NOWHERE, **options)


async def test_a_push_after_detach_waits_for_the_next_attach(redis: "Redis", redis_url: str) -> None:
    """Such a push once kept the event loop busy for good, so that the whole program stood still."""
    async with serving(redis_url) as gateway, Bus() as bus:
        queue = bus.federate(bus.queue("foo"), url_of(gateway), secret=SECRET)
        await queue.attach()
        await queue.detach()
        pushed, many = queue.push("a"), asyncio.create_task(queue.push_many(["b"]))
        await asyncio.sleep(0)
        assert not pushed.done()
        await queue.attach()
        assert {await pushed, *await many} == {1, 2}


@asynccontextmanager
async def lying(*answered: str) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yield the URL of a server that creates objects and answers only the calls ``answered``, and what it heard."""
    heard = list[bytes]()

    async def answer(connection: ServerConnection) -> None:
        async for frame in connection:
            assert isinstance(frame, bytes)
            heard.append(frame)
            if b'"type"' in frame:
                await connection.send(frame[:16] + b"1ready")
                continue
            for call in map(json.loads, frame[17:].splitlines()):
                if call["method"] in answered:
                    (number,) = call["callbacks"]
                    await connection.send(frame[:16] + b'1{"method":%s,"arguments":[null,true]}\n' % number.encode())

    async with serve(answer, "127.0.0.1", 0, process_response=_as_a_gateway) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/bus", heard


def _as_a_gateway(_: object, __: object, response: object) -> None:
    response.headers[HEADER] = "1"  # type: ignore[attr-defined]


async def test_a_site_that_is_away_is_waited_for_and_then_raises() -> None:
    async with Bus(patience=0.5) as bus:
        queue = bus.federate(bus.queue("foo"), NOWHERE, secret=SECRET)
        with pytest.raises(Unavailable, match="patience"):
            await queue.attach()
        with pytest.raises(Unavailable):
            await queue.push("a")


async def test_BQ_D27_calls_that_wait_are_bounded() -> None:
    async with Bus(patience=30, buffer=3) as bus:
        queue = bus.federate(bus.queue("foo"), NOWHERE, secret=SECRET)
        waiting = [asyncio.ensure_future(queue.exists()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="buffer"):
            await queue.exists()
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_BQ_D27_pushes_that_wait_are_bounded() -> None:
    async with Bus(patience=30, buffer=3) as bus:
        queue = bus.federate(bus.queue("foo"), NOWHERE, secret=SECRET)
        waiting = [queue.push("x") for _ in range(3)]
        with pytest.raises(Unavailable, match="buffer"):
            await queue.push("y")
        assert not any(each.done() for each in waiting)
    assert all(isinstance(each.exception(), WrongCall) for each in waiting)


async def test_pushes_that_a_site_does_not_answer_are_bounded() -> None:
    async with lying("attach") as (url, _), Bus(patience=3_600, buffer=3) as bus:
        queue = bus.federate(bus.queue("foo"), url, secret=SECRET)
        await queue.attach()
        waiting = [queue.push("x") for _ in range(3)]
        await eventually(lambda: queue.is_away)
        with pytest.raises(Unavailable, match="buffer"):
            async with asyncio.timeout(PATIENCE):
                await queue.push("z")
        assert not any(each.done() for each in waiting)
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_pushes_that_a_site_does_not_answer_end() -> None:
    async with lying("attach") as (url, _), Bus(patience=1) as bus:
        queue = bus.federate(bus.queue("foo"), url, secret=SECRET)
        while not queue.is_attached:
            with suppress(Unavailable):  # if the machine stalls
                await queue.attach()
        waiting = [queue.push("x") for _ in range(3)]
        many = asyncio.ensure_future(queue.push_many(["y"]))
        async with asyncio.timeout(PATIENCE):
            for each in waiting:
                with pytest.raises(Unconfirmed, match="patience"):
                    await each
            with pytest.raises(Unconfirmed, match="patience"):
                await many


async def test_a_site_that_sends_nonsense_and_answers_nothing_holds_nobody_up() -> None:
    """Its calls end after the bus's patience, the site is used again, and the bus ends at once."""
    heard = list[bytes]()

    async def lie(connection: ServerConnection) -> None:
        async for frame in connection:
            assert isinstance(frame, bytes)
            heard.append(frame)
            if b'"type"' in frame:
                await connection.send(frame[:16] + b"1ready")
                await connection.send(frame[:16] + b'1{"method":1.5,"arguments":[]}\n[]\n{"method":"x"}\n')

    with capture_logs() as log:
        async with serve(lie, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with asyncio.timeout(PATIENCE):
                async with Bus(patience=1) as bus:
                    queue = bus.federate(bus.queue("foo"), f"ws://127.0.0.1:{port}/bus", secret=SECRET)
                    while len(heard) <= 2:  # two calls, unless the machine stalls
                        with pytest.raises(Unavailable):
                            await queue.attach()
    assert "unreadable answer" in [line["event"] for line in log]


async def test_a_site_is_reached_in_one_way_only() -> None:
    async with Bus() as bus:
        first = bus.federate(bus.queue("foo"), NOWHERE, secret=SECRET, sockets=2)
        same = bus.federate(bus.queue("bar"), NOWHERE, secret=SECRET)
        assert same.site is first.site
        assert bus.federate(bus.queue("bar"), NOWHERE, secret=SECRET, sockets=2).site is first.site
        with pytest.raises(WrongCall, match="sockets differs"):
            bus.federate(bus.queue("foo"), NOWHERE, secret=SECRET, sockets=3)
        with pytest.raises(WrongCall, match="tls differs"):
            bus.federate(bus.queue("foo"), NOWHERE, secret=SECRET, tls=ssl.create_default_context())
        with pytest.raises(WrongCall, match="secret_in_query differs"):
            bus.federate(bus.queue("foo"), NOWHERE, secret=SECRET, secret_in_query=True)
        with pytest.raises(WrongCall, match="sockets=0"):
            bus.federate(bus.queue("foo"), NOWHERE, secret="another", sockets=0)
