"""Requests in the hands of a function: late answers, clients that go, slow readers, answers in pieces, and draining."""

import asyncio
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from common.http import server
from common.http.access import WITHIN
from common.http.direct import MAX_AHEAD, Exchange
from common.http.limits import Limits
from tests.http.clients import Client, Served, serving, shorten
from tests.support.harness import PATIENCE, eventually

GET = b"GET /%b HTTP/1.1\r\nHost: example.org\r\n\r\n"


class Held:
    """A handler that keeps what it is given until the test answers."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.gone: list[str] = []

    def __call__(self, exchange: Exchange) -> None:
        exchange.when_gone(lambda: self.gone.append(exchange.path))
        self.exchanges.append(exchange)

    async def next(self) -> Exchange:
        await eventually(lambda: self.exchanges)
        return self.exchanges.pop(0)


async def test_the_next_request_of_a_connection_waits_for_the_answer_of_the_one_before() -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(GET % b"a" + GET % b"b" + GET % b"c")
        for path in (b"a", b"b", b"c"):
            exchange = await held.next()
            assert exchange.path == f"/{path.decode()}"
            assert not held.exchanges
            exchange.respond(200, [(b"x", path)], path)
            answer = await client.answer()
            assert (answer.body, answer.header("x")) == (path, path.decode())


async def test_a_request_that_breaks_http_is_refused_behind_the_answer_under_way() -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(GET % b"a" + b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx")
        (await held.next()).respond(200, [], b"first")
        assert (await client.answer()).body == b"first"
        assert (await client.answer()).status == 400
        assert await client.is_closed()
    assert not held.exchanges


async def test_half_a_head_behind_a_request_under_way_has_its_time_after_the_answer() -> None:
    held = Held()
    limits = Limits(idle_seconds=3_600)
    async with serving(limits, handler=held) as served, served.connect() as client:
        await client.send(GET % b"a" + b"GET /b HT")
        exchange = await held.next()
        shorten(limits, head_seconds=0.2)
        await asyncio.sleep(0.6)  # timing: nothing may happen
        exchange.respond(200, [])
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 408


async def test_the_handler_hears_at_once_that_a_client_has_gone() -> None:
    held = Held()
    async with serving(handler=held) as served:
        async with served.connect() as client:
            await client.send(GET % b"a" + GET % b"b")
            exchange = await held.next()
        await eventually(lambda: held.gone == ["/a"])
        exchange.respond(200, [], b"too late")
        (await held.next()).respond(200, [], b"too late")
        assert held.gone == ["/a", "/b"]
        await eventually(lambda: not served.server.admission.open)
    assert not held.exchanges


@pytest.mark.parametrize("behind", [b"", b"GET /b HT", b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf"])
async def test_a_client_that_closes_its_half_is_answered(behind: bytes) -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(GET % b"a" + behind)
        exchange = await held.next()
        client.writer.write_eof()
        await eventually(lambda: held.gone == ["/a"])
        exchange.respond(200, [], b"answer")
        answer = await client.answer()
        assert (answer.body, answer.header("connection")) == (b"answer", "close")
        assert await client.is_closed()


async def test_a_client_that_closes_its_half_is_answered_all_that_it_has_asked() -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(GET % b"a" + GET % b"b" + GET % b"c")
        exchange = await held.next()
        client.writer.write_eof()
        await eventually(lambda: held.gone == ["/a"])
        exchange.respond(200, [], b"/a")
        for path in (b"/b", b"/c"):
            (await held.next()).respond(200, [], path)
        answers = [await client.answer() for _ in range(3)]
        assert [answer.body for answer in answers] == [b"/a", b"/b", b"/c"]
        assert [answer.header("connection") for answer in answers] == [None, None, "close"]
        assert await client.is_closed()


async def test_a_client_that_does_not_read_its_answer_is_cut_off() -> None:
    body = b"x" * 1_000_000
    sent = 0

    def generous(exchange: Exchange) -> None:
        nonlocal sent
        exchange.respond(200, [], body)
        sent += 1

    async with serving(Limits(stall_seconds=0.3), handler=generous) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, (GET % b"a") * 200)
            await eventually(lambda: served.server.admission.open)
            await eventually(lambda: not served.server.admission.open)
    assert sent < 200


async def test_an_answer_may_come_in_pieces() -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(GET % b"a")
        exchange = await held.next()
        exchange.begin(200, [(b"content-type", b"text/event-stream")])
        for piece in (b"one,", b"", b"two"):
            exchange.send(piece)
        exchange.end()
        answer = await client.answer()
        assert (answer.body, answer.header("content-type")) == (b"one,two", "text/event-stream")
        await client.send(GET % b"b")
        (await held.next()).respond(204, [], b"ignored")
        answer = await client.answer()
        assert (answer.status, answer.header("content-length")) == (204, None)


async def test_a_body_comes_whole_however_it_was_cut() -> None:
    held = Held()
    body = bytes(range(256)) * 100
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(b"POST /a HTTP/1.1\r\nHost: a\r\nX: 1\r\nx: 2\r\nContent-Length: %d\r\n\r\n" % len(body))
        for first in range(0, len(body), 1_000):
            await client.send(body[first : first + 1_000])
            await asyncio.sleep(0)
        exchange = await held.next()
        assert exchange.body == body
        assert [value for name, value in exchange.headers if name == b"x"] == [b"1", b"2"]


async def test_requests_with_bodies_behind_one_under_way_stop_their_client() -> None:
    held, many = Held(), 150
    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000
    async with serving(handler=held) as served, served.connect() as client:
        sent = await client.send_until_stopped(request * many)
        assert sent < 15_000_000  # what the sockets hold, and a request or two
        sending = asyncio.create_task(client.send((request * many)[sent:]))
        for _ in range(many):
            (await held.next()).respond(200, [])
            assert (await client.answer()).status == 200
        await sending


async def test_a_target_in_absolute_form_must_name_the_host() -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(b"GET http://example.org:80/a?b=c HTTP/1.1\r\nHost: Example.org:80\r\n\r\n")
        exchange = await held.next()
        assert (exchange.path, exchange.query) == ("/a", "b=c")
        exchange.respond(200, [])
        assert (await client.answer()).status == 200
        answer = await client.ask(b"GET http://other.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n")
        assert answer.status == 400


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://a:80/", b"a", 200), (b"http://a/", b"A:80", 200), (b"https://a:443/", b"a", 200),
        (b"http://[::1]/", b"[::1]:80", 200), (b"http://a/", b"a:", 200), (b"http://a:8080/", b"a:8080", 200),
        (b"http://a:443/", b"a", 400), (b"http://a/", b"a:8080", 400), (b"http://a:8080/", b"a", 400),
        (b"http://[::1]/", b"[::2]", 400), (b"https://a/", b"a:80", 400),
    ],
)  # fmt: skip
async def test_the_port_that_a_scheme_has_by_itself_is_the_same_authority(
    target: bytes, host: bytes, status: int
) -> None:
    async with serving() as served, served.connect() as client:
        assert (await client.ask(b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (target, host))).status == status


async def test_a_target_of_another_scheme_is_refused() -> None:
    async with serving() as served, served.connect() as client:
        assert (await client.ask(b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n")).status == 400


async def test_an_answer_that_resets_a_form_has_no_body() -> None:
    def reset(exchange: Exchange) -> None:
        exchange.respond(205, [], b"more")

    async with serving(handler=reset) as served, served.connect() as client:
        answer = await client.ask(GET % b"a")
        assert (answer.status, answer.header("content-length"), answer.body) == (205, "0", b"")


async def test_a_process_that_shares_the_port_gets_no_connection_before_it_accepts() -> None:
    """It may wait for its server for seconds, or be stopped: then the connections in its queue would be reset."""
    first = server.HttpServer(Limits(), handler=lambda exchange: exchange.respond(200, []))
    with server.listening_socket("127.0.0.1", 0, shared=True) as one:
        port = one.getsockname()[1]
        with server.listening_socket("127.0.0.1", port, shared=True):
            await first.start(one)
            for _ in range(30):
                async with Client(port) as client, asyncio.timeout(PATIENCE):
                    assert (await client.ask(GET % b"")).status == 200
            await first.drain(0)
        with pytest.raises(server.CannotListen, match="is taken"):
            server.listening_socket("127.0.0.1", port)


async def test_draining_answers_what_is_in_hand_and_closes_what_is_idle() -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as busy, served.connect() as idle:
        await idle.send(GET % b"idle")
        (await held.next()).respond(200, [])
        await idle.answer()
        await busy.send(GET % b"busy")
        exchange = await held.next()
        draining = asyncio.create_task(served.server.drain(30))
        assert await idle.is_closed()
        assert not draining.done()
        exchange.respond(200, [], b"last")
        answer = await busy.answer()
        assert (answer.body, answer.header("connection")) == (b"last", "close")
        assert await busy.is_closed()
        assert await draining == 0


async def test_draining_that_takes_long_says_how_many_requests_are_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SLOW_SECONDS", 0.1)
    told: list[int] = []
    held = Held()
    async with serving(handler=held) as served, served.connect() as busy:
        await busy.send(GET % b"busy")
        exchange = await held.next()
        draining = asyncio.create_task(served.server.drain(30, slow=told.append))
        await eventually(lambda: told)
        exchange.respond(200, [], b"last")
        assert (await busy.answer()).body == b"last"
        assert await draining == 0
    assert told == [1]


async def test_a_request_on_its_way_over_an_idle_connection_is_answered_while_draining() -> None:
    """A proxy keeps connections, and must not send a POST to another server if this one closes without an answer."""
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        for way in ("keep-alive", "close"):
            await client.send(GET % b"next")
            (await held.next()).respond(200, [])
            answer = await client.answer()
            assert (answer.status, answer.header("connection") or "keep-alive") == (200, way)
            if way == "keep-alive":
                draining = asyncio.create_task(served.server.drain(30))
                await eventually(lambda: served.server.admission.draining)
        assert await client.is_closed()
        assert await draining == 0


async def test_a_connection_just_made_is_answered_while_draining() -> None:
    held = Held()
    async with serving(handler=held) as served:
        new = Client(served.port)
        async with new:
            draining = asyncio.create_task(served.server.drain(30))
            await new.send(GET % b"new")
            exchange = await held.next()
            await eventually(lambda: served.server.admission.draining)
            exchange.respond(200, [])
            assert (await new.answer()).header("connection") == "close"
        assert await draining == 0


async def test_draining_does_not_wait_for_a_client_that_has_gone() -> None:
    held = Held()
    async with serving(handler=held) as served:
        async with served.connect() as client:
            await client.send(GET % b"a")
            await held.next()
        await eventually(lambda: held.gone)
        async with asyncio.timeout(30):
            assert await served.server.drain(60) == 0


async def test_draining_ends_in_time() -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(GET % b"a")
        await held.next()
        assert await served.server.drain(0.1) == 1
        assert await client.is_closed()


async def test_access_is_counted() -> None:
    def answer(exchange: Exchange) -> None:
        exchange.respond(int(exchange.path[1:]), [], b"four")

    async with serving(handler=answer) as served, served.connect() as client:
        for status in (b"200", b"404", b"503"):
            await client.ask(GET % status)
        await client.ask(b"PURGE /200 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nxx")
        counters, slowest = served.server.admission.access.take()
    assert sum(counters.pop(name, 0) for name in WITHIN) == 4
    expected: dict[str, Any] = {"requests": 4, "2xx": 2, "4xx": 1, "5xx": 1, "GET": 3, "other": 1}
    assert counters == {**expected, "received": 2, "sent": 16}
    assert 0 <= slowest < 30


POST = b"POST / HTTP/1.1\r\nHost: example.org\r\nContent-Length: 600\r\n\r\n" + b"x" * 600


async def test_bodies_in_hand_are_bounded_together() -> None:
    held = Held()
    limits = Limits(body=800, bodies=1_000)
    async with serving(limits, handler=held) as served, served.connect() as first, served.connect() as second:
        await first.send(POST)
        exchange = await held.next()
        refused = await second.ask(POST)
        assert (refused.status, refused.header("retry-after"), refused.header("connection")) == (503, "1", "close")
        exchange.respond(200, [])
        assert (await first.answer()).status == 200
        async with served.connect() as third:
            await third.send(POST)
            await held.next()
            linger = struct.pack("ii", 1, 0)  # its end is a reset: who only closes may still read
            third.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            third.writer.transport.abort()
            await eventually(lambda: served.server.admission.body_bytes == 0)
        await first.send(POST)
        (await held.next()).respond(200, [])
        assert (await first.answer()).status == 200


async def test_a_body_behind_an_answer_that_ends_its_connection_is_not_in_hand() -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(POST.replace(b"Host", b"Connection: close\r\nHost") + POST)
        exchange = await held.next()
        exchange.respond(200, [])
        assert (await client.answer()).header("connection") == "close"
        assert served.server.admission.body_bytes == 0


async def test_bodies_from_one_address_leave_room_for_others() -> None:
    held = Held()
    async with serving(Limits(body=600, bodies=1_600), handler=held) as served, served.connect() as one:
        await one.send(POST)
        await held.next()
        async with served.connect() as second:
            assert (await second.ask(POST)).status == 503
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=("127.0.0.2", 0))
        writer.write(POST)
        (await held.next()).respond(200, [])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_body_in_tiny_chunks_takes_no_more_memory_than_its_bytes() -> None:
    held, many = Held(), 100_000
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        tracemalloc.start()
        await client.send(b"2\r\nab\r\n" * many)
        await eventually(lambda: served.server.admission.body_bytes == 2 * many)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken < 8 * many
        await client.send(b"0\r\n\r\n")
        assert (await held.next()).body == b"ab" * many


async def test_requests_that_come_at_once_are_bounded_in_number() -> None:
    held = Held()
    async with serving(handler=held) as served, served.connect() as client:
        await client.send(GET % b"a" * (MAX_AHEAD + 50))
        for _ in range(MAX_AHEAD + 1):
            (await held.next()).respond(200, [])
            assert (await client.answer()).status == 200
        assert (await client.answer()).status == 429
        assert await client.is_closed()
    assert not held.exchanges


@pytest.mark.parametrize("end", [b"1.1\r\nHost: a", b"1.1\r\nHost: a\r\nConnection: close", b"1.0"])
async def test_a_client_that_reads_slowly_gets_its_whole_answer(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for scale in (1, 4, 16):  # more slowly, with more time, if the machine stalls
        monkeypatch.setattr("common.http.guarded.LINGER_SECONDS", 0.2 * scale)
        limits = Limits(slowest=1_000)
        async with serving(limits, handler=large) as served, slow_reader(served, pause=0.01 * scale) as read:
            shorten(limits, stall_seconds=0.4 * scale, idle_seconds=0.2 * scale)
            count = await read(b"GET / HTTP/%b\r\n\r\n" % end)
        if count >= LARGE_ANSWER:
            break
    assert count >= LARGE_ANSWER


async def test_a_stop_waits_for_a_client_that_reads_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.http.guarded.SPARE_SECONDS", 0.2)
    async with serving(handler=large) as served, slow_reader(served) as read:
        reading = asyncio.create_task(read(GET % b"a"))
        await eventually(lambda: served.server.admission.access.counters["requests"])
        assert await served.server.drain(30) == 0
        assert await reading >= LARGE_ANSWER


async def test_answers_that_nobody_reads_are_bounded_together() -> None:
    async with serving(Limits(bodies=20_000_000, stall_seconds=300), handler=large) as served:
        idle = [socket.socket() for _ in range(4)]
        try:
            async with slow_reader(served, "127.0.0.2") as read:
                reading = asyncio.create_task(read(GET % b"a"))
                for each in idle:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                    each.connect(("127.0.0.1", served.port))
                    each.sendall(GET % b"a")
                admission = served.server.admission
                await eventually(lambda: admission.access.counters["requests"] == 5)
                await eventually(lambda: sum(each.unread for each in admission.open) <= 20_000_000)
                assert await reading >= LARGE_ANSWER
                assert admission.open
        finally:
            for each in idle:
                each.close()


LARGE_ANSWER = 12_000_000
"""Bytes, more than sockets hold."""


def large(exchange: Exchange) -> None:
    """Answer with ``LARGE_ANSWER``."""
    exchange.respond(200, [], bytes(LARGE_ANSWER))


@asynccontextmanager
async def slow_reader(
    served: Served, address: str = "", pause: float = 0.01
) -> AsyncIterator[Callable[[bytes], Coroutine[Any, Any, int]]]:
    """Yield a function that sends a request, and returns how many bytes came, read with pauses: at some 8 MB/s."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.setblocking(False)
        client.bind((address, 0))
        await loop.sock_connect(client, ("127.0.0.1", served.port))

        async def read(request: bytes) -> int:
            await loop.sock_sendall(client, request)
            count = 0
            while count < LARGE_ANSWER and (piece := await loop.sock_recv(client, 80_000)):
                count += len(piece)
                await asyncio.sleep(pause)
            return count

        yield read
