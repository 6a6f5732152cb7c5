"""An importer whose server restarts, hangs, loses a connection or forgets the importer."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.core.connection import cancellable
from penstock.core.link import passes
from penstock.core.wire import Reply
from penstock.testing.server import EmbeddedServer
from tests.http.importing import KEYS, OUT, Importing, importing
from tests.support.harness import PATIENCE, eventually

GET, POST = (
    b"%b / HTTP/1.1\r\nHost: example.org\r\nContent-Length: 0\r\n\r\n" % method for method in (b"GET", b"POST")
)


@asynccontextmanager
async def on(server: EmbeddedServer, **settings: Any) -> AsyncIterator[Importing]:
    async with cancellable(Redis.from_url(server.url)) as redis, importing(redis, server.url, **settings) as here:
        yield here


async def statuses(here: Importing, request: bytes = GET) -> int:
    async with asyncio.timeout(PATIENCE), here.connect() as client:
        return (await client.ask(request)).status


async def test_an_answer_survives_a_restart_of_the_server_and_meanwhile_others_get_503() -> None:
    with EmbeddedServer(aof=True) as server:
        async with on(server, timeout=3_600) as here, here.connect() as client:
            await client.send(POST)
            request = await here.request()
            server.kill()
            await eventually(lambda: not here.bridge.is_open)
            for _ in range(20):
                assert await statuses(here) == 503
            server.start()
            await here.redis.connection_pool.disconnect()
            await here.answer(request, body="kept")
            assert (await client.answer()).body == b"kept"
            await eventually(lambda: here.bridge.is_open)
            again = asyncio.create_task(statuses(here))
            await here.answer(await here.request())
            assert await again == 200


async def test_an_answer_in_the_list_is_read_after_the_connection_was_cut() -> None:
    with EmbeddedServer() as server:
        async with on(server) as here, here.connect() as client:
            for number in range(5):
                await client.send(POST)
                request = await here.request()
                await here.redis.client_kill_filter(_type="normal", skipme=True)
                await here.answer(request, body=str(number))
                assert (await client.answer()).body == str(number).encode()
                await eventually(lambda: here.bridge.is_open)


async def test_a_server_that_hangs_is_503_and_service_resumes_by_itself() -> None:
    with EmbeddedServer() as server:
        async with on(server, timeout=3_600) as here, here.connect() as first:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                await first.send(GET)
                await eventually(lambda: not here.bridge.is_open)
                assert await statuses(here) == 503
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await eventually(lambda: here.bridge.is_open)
            # The first request is idempotent, so it was pushed again; both are answered, one of them in vain.
            await here.answer(await here.request(), body="answered")
            assert (await first.answer()).body == b"answered"


async def test_an_importer_that_stood_still_itself_waits_once_more_for_the_reply() -> None:
    """A client's request, or the watch of the connection, may come before the reply is read."""
    with EmbeddedServer() as server:
        async with on(server) as here:
            caller, accepted = here.bridge._caller, list[bool]()

            async def look() -> None:
                accepted.append(here.bridge.is_open)

            os.kill(server.pid, signal.SIGSTOP)
            try:
                caller.post(("TIME",), Reply())
                caller._look = look
                caller._looked_at = caller.wire.asked_at = caller.wire.heard_at = time.monotonic() - 60
                assert here.bridge.is_open
                await eventually(lambda: accepted)
                await eventually(lambda: not here.bridge.is_open)
                assert accepted[0]
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await eventually(lambda: here.bridge.is_open)


async def test_a_server_that_hangs_for_long_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.http.caller.MAX_SILENCE", 0.3)
    troubles = list[Exception]()
    with EmbeddedServer() as server:
        async with on(server) as here, here.connect() as client:
            os.kill(server.pid, signal.SIGSTOP)
            await client.send(GET)

            def is_silent_while_connecting() -> bool:
                if trouble := here.bridge._caller.trouble:
                    troubles.append(trouble)
                return "no reply while connecting" in map(str, troubles)

            try:
                await eventually(is_silent_while_connecting)
                await asyncio.sleep(1)  # timing: nothing may happen
                assert is_silent_while_connecting()
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await eventually(lambda: here.bridge.is_open)
    assert all(map(passes, troubles))


async def test_a_request_that_may_not_be_repeated_is_pushed_at_most_once_and_ends_with_504() -> None:
    with EmbeddedServer() as server:
        async with on(server, timeout=3) as here, here.connect() as client:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                await client.send(POST)
                await eventually(lambda: here.count("unconfirmed") == 1)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert (await client.answer()).status == 504
            await eventually(lambda: here.bridge.is_open)
            assert await here.redis.llen(OUT) <= 1
            assert here.count("repeated") == 0


@pytest.mark.parametrize(("many", "size"), [(9_000, 20), (40, 1_000_000)])
async def test_requests_of_one_turn_are_pushed_in_order_whatever_their_number_and_size(many: int, size: int) -> None:
    """As after a reconnection, when all that got no reply are pushed again."""
    with EmbeddedServer() as server:
        async with on(server) as here:
            push, pushes = here.bridge._pushed, list[int]()

            def pushed(batch: list[Any], reply: Any) -> None:
                pushes.append(len(batch))
                push(batch, reply)

            here.bridge._pushed = pushed
            for number in range(many):
                message = str(number).rjust(size).encode()
                assert here.bridge.ask("PUT", lambda *_, message=message: message, lambda _: None)
            await eventually(lambda: here.count("pushed") == many)
            found: Any = await here.redis.lrange(OUT, 0, -1)
            assert [*map(int, found)] == [*range(many)][::-1]
            assert max(pushes) <= min(500, max(1, (1 << 20) // size))


async def test_a_request_for_later_whose_push_got_no_reply_is_504_with_location() -> None:
    """The server may have it, so its client must not be told to send it again."""
    with EmbeddedServer() as server:
        async with on(server, accept=["/*"]) as here, here.connect() as client:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                await client.send(POST)
                answer = await client.answer()
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert (answer.status, answer.header("retry-after"), here.count("unconfirmed")) == (504, None, 1)
            request = await here.request()
            assert answer.header("location") == f"/_requests/{request['id']}"
            await here.answer(request, body="done once")
            await eventually(lambda: here.bridge.is_open)
            await client.send(f"GET {answer.header('location')}/answer HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert (await client.answer()).body == b"done once"


async def test_the_clock_of_the_server_is_read_again(
    redis: "Redis", redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has slept is late by that time, and all of its requests would have deadlines in the past."""
    monkeypatch.setattr("services.himporter.clock.SECONDS", 0.1)
    async with importing(redis, redis_url) as here:
        right = here.bridge._clock.offset
        here.bridge._clock.offset -= 35
        await eventually(lambda: abs(here.bridge._clock.offset - right) < 10)


async def test_answers_to_a_former_id_still_arrive() -> None:
    with EmbeddedServer() as server:
        async with on(server) as here, here.connect() as client, here.connect() as other:
            await client.send(GET)
            former = await here.request()
            here.bridge.become("2")
            await other.send(GET)
            request = await here.request()
            assert (former["replyTo"], request["replyTo"]) == ("web:res:1", "web:res:2")
            await here.answer(former, body="former")
            await here.answer(request, body="latter")
            assert (await client.answer()).body == b"former"
            assert (await other.answer()).body == b"latter"


async def test_a_stop_answers_the_requests_in_hand() -> None:
    with EmbeddedServer() as server:
        async with cancellable(Redis.from_url(server.url)) as redis, AsyncExitStack() as clients:
            async with importing(redis, server.url, stop_timeout=30) as here:
                client = await clients.enter_async_context(here.connect())
                await client.send(GET)
                answering = asyncio.create_task(_answer_once_it_stops(here, await here.request()))
            assert (await client.answer()).body == b"at last"
            assert await client.is_closed()
            await answering
            assert await redis.hget(KEYS.metric("http"), "answered") == b"1"


async def _answer_once_it_stops(here: Importing, request: dict[str, Any]) -> None:
    await eventually(lambda: not here.context.running)
    await here.answer(request, body="at last")
