"""A client that misbehaves in every way is refused, whether a function answers or an ASGI application."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common import open_files
from common.http.direct import Exchange
from common.http.limits import Limits
from tests.http.clients import Client, Served, echo, echo_app, serving, shorten
from tests.support.harness import eventually

FRONTS: dict[str, dict[str, Any]] = {"direct": {"handler": echo}, "asgi": {"app": echo_app}}
LIMITS = Limits(head=4_096, headers=20, target=1_000, body=10_000, head_seconds=60, stall_seconds=60, per_address=5)
HOST = b"Host: example.org\r\n"


@pytest.fixture(params=FRONTS)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with serving(LIMITS, **FRONTS[request.param]) as served:
        yield served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    async with served.connect() as client:
        yield client


REFUSED = {
    "both Content-Length and Transfer-Encoding": (
        400,
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "two Content-Length": (400, b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n"),
    "a signed Content-Length": (400, b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +3\r\n\r\nabc"),
    "another Transfer-Encoding": (400, b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\nabc"),
    "Transfer-Encoding in HTTP/1.0": (
        400,
        b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "bare LF": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "bare LF behind the size of a chunk": (
        400,
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    ),
    "obs-fold": (400, b"GET / HTTP/1.1\r\n" + HOST + b"x: a\r\n b\r\n\r\n"),
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n"),
    "a Host that is none": (400, b"GET / HTTP/1.1\r\nHost: a b/c\r\n\r\n"),
    "a space before the colon": (400, b"GET / HTTP/1.1\r\nHost : a\r\n\r\n"),
    "NUL in a header": (400, b"GET / HTTP/1.1\r\n" + HOST + b"x: \x00\r\n\r\n"),
    "a fragment": (400, b"GET /#a HTTP/1.1\r\n" + HOST + b"\r\n"),
    "bytes that are not ASCII in the target": (400, b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "HTTP/2 with prior knowledge": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "an unknown version": (400, b"GET / HTTP/3.0\r\n\r\n"),
    "HTTP/2.0": (505, b"GET / HTTP/2.0\r\n" + HOST + b"\r\n"),
    "HTTP/0.9": (505, b"GET / HTTP/0.9\r\n\r\n"),
    "CONNECT": (400, b"CONNECT example.org:443 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a header of 20 MB": (431, b"GET / HTTP/1.1\r\n" + HOST + b"x: " + b"x" * 20_000_000),
    "100,000 headers": (431, b"GET / HTTP/1.1\r\n" + HOST + b"x: y\r\n" * 100_000),
    "a target of 20 KB": (414, b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a body over the limit": (413, b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 10001\r\n\r\nx"),
    "chunks over the limit": (
        413,
        b"POST / HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 20,
    ),
    "a chunk of 2^64 - 1 bytes, of which none comes": (
        413,
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
    ),
    "a chunk that is larger with the one before": (
        413,
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n270e;x=y\r\nabc",
    ),
    "endless extensions of a chunk": (
        400,
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3;" + b"x" * 20_000_000,
    ),
    "the target * for another method than OPTIONS": (400, b"GET * HTTP/1.1\r\n" + HOST + b"\r\n"),
    "endless trailers": (
        431,
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 10_000,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_breaks_http_or_a_limit_is_refused_and_the_connection_ends(
    served: Served, client: Client, case: str
) -> None:
    status, request = REFUSED[case]
    sending = asyncio.create_task(client.send(request))
    answer = await client.answer()
    assert (answer.status, answer.header("connection")) == (status, "close")
    assert answer.body.startswith(b'{"error":"')
    assert await client.is_closed()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert served.server.admission.access.counters[f"refused:{status}"] == 1


async def test_a_head_in_many_small_pieces_is_bounded_too(client: Client) -> None:
    await client.send(b"GET / HTTP/1.1\r\nx: ")
    for _ in range(10):
        await client.send(b"x" * 1_000)
        await asyncio.sleep(0.01)  # so that the pieces arrive apart
    assert (await client.answer()).status == 431


async def test_requests_that_are_fine_are_answered_on_one_connection(client: Client) -> None:
    for path in ("/a", "/b%2Fc"):
        answer = await client.ask(f"GET {path}?x=%20 HTTP/1.1\r\nHost: a:80\r\n\r\n".encode())
        assert (answer.status, answer.body) == (200, f"GET {path} x=%20".encode())
    assert (await client.ask(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc")).body == b"abc"
    chunked = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nt: x\r\n\r\n"
    assert (await client.ask(chunked)).body == b"abc"


async def test_spaces_behind_a_value_are_no_part_of_it(client: Client) -> None:
    answer = await client.ask(
        b"POST / HTTP/1.1\r\nHost: a \t\r\nTransfer-Encoding: chunked \r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    )
    assert (answer.status, answer.body) == (200, b"abc")


async def test_an_empty_line_before_a_request_is_ignored(client: Client) -> None:
    assert (await client.ask(b"\r\n\r\nGET / HTTP/1.1\r\n" + HOST + b"\r\n")).status == 200


async def test_http_1_0_needs_no_host_and_ends_the_connection(client: Client) -> None:
    assert (await client.ask(b"GET / HTTP/1.0\r\n\r\n")).status == 200
    assert await client.is_closed()


async def test_requests_sent_at_once_are_answered_in_order(client: Client) -> None:
    requests = [b"GET /%d HTTP/1.1\r\n%b\r\n" % (number, HOST) for number in range(500)]
    await client.send(b"".join(requests))
    for number in range(500):
        assert (await client.answer()).body == b"GET /%d " % number


async def test_a_refusal_waits_for_the_answers_before_it(client: Client) -> None:
    await client.send(b"GET /a HTTP/1.1\r\n" + HOST + b"\r\nGET /b HTTP/1.1\r\n\r\n")
    assert (await client.answer()).body == b"GET /a "
    assert (await client.answer()).status == 400
    assert await client.is_closed()


async def test_an_upgrade_is_ignored_and_what_follows_it_dropped(client: Client) -> None:
    upgrade = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    answer = await client.ask(upgrade + b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n")
    assert (answer.status, answer.header("connection"), answer.body) == (200, "close", b"GET / ")
    assert await client.is_closed()


OFFER = b"POST / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
FRAMED = (b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


@pytest.mark.parametrize("in_pieces", [True, False])
@pytest.mark.parametrize("framed", FRAMED)
async def test_a_request_that_offers_http_2_keeps_its_body(client: Client, framed: bytes, in_pieces: bool) -> None:
    if in_pieces:
        for byte in OFFER + framed:
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
    else:
        await client.send(OFFER + framed + b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n")
    answer = await client.answer()
    assert (answer.status, answer.header("connection"), answer.body) == (200, "close", b"abc")
    assert await client.is_closed()


async def test_a_body_behind_an_offer_of_http_2_is_bounded_too(client: Client) -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\n9999\r\n" + b"x" * 20_000
    assert (await client.ask(OFFER + body)).status == 413
    assert await client.is_closed()


async def test_a_client_that_waits_for_100_continue_gets_it(client: Client) -> None:
    await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    async with asyncio.timeout(30):
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await client.ask(b"abc")).body == b"abc"


async def test_a_client_of_http_1_0_gets_no_100_continue(client: Client) -> None:
    answer = await client.ask(b"POST / HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc")
    assert (answer.status, answer.body) == (200, b"abc")


async def test_the_answer_to_head_has_no_body(client: Client) -> None:
    answer = await client.ask(b"HEAD / HTTP/1.1\r\n" + HOST + b"\r\n", of="HEAD")
    assert (answer.status, answer.header("content-length")) == (200, "7")
    assert (await client.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).body == b"GET / "


async def test_connections_from_one_address_are_bounded(served: Served, client: Client) -> None:
    clients = [client, *(served.connect() for _ in range(4))]
    for each in clients[1:]:
        await each.__aenter__()
    async with served.connect() as sixth:
        assert (await sixth.answer()).status == 429
        assert await sixth.is_closed()
    for each in clients:
        assert (await each.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).status == 200
        await each.__aexit__()
    await eventually(lambda: not served.server.admission.open)


async def test_connections_leave_files_for_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "allow_open_files", lambda _: open_files.OTHER_FILES + 1)
    async with serving(LIMITS, handler=echo) as served, served.connect() as first, served.connect() as second:
        assert (await first.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).status == 200
        assert (await second.answer()).status in (429, 503)


async def test_a_connection_that_was_reset_before_it_is_accepted_is_not_served() -> None:
    """Nobody can tell where it came from, on which its bound, and what it may say of others, depend."""
    asked = list[str]()

    def handler(exchange: Exchange) -> None:
        asked.append(exchange.address)
        echo(exchange)

    async with serving(handler=handler) as served:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", served.port)) as given:
                given.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"X-Forwarded-For: 10.0.0.1\r\n\r\n")
                given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with served.connect() as client:
            assert (await client.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).status == 200
        await eventually(lambda: not served.server.admission.open)
    assert asked == ["127.0.0.1"]


SLOW = {
    "half a head": (408, b"GET / HTTP/1.1\r\nHost"),
    "half a body": (408, b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\nabc"),
    "half a chunk": (408, b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nA\r\nabc"),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("case", SLOW)
async def test_a_client_that_falls_silent_is_cut_off(front: str, case: str) -> None:
    status, request = SLOW[case]
    limits = Limits(head_seconds=0.2, stall_seconds=0.2)
    async with serving(limits, **FRONTS[front]) as served, served.connect() as client:
        assert (await client.ask(request)).status == status
        assert await client.is_closed()


@pytest.mark.parametrize("front", FRONTS)
async def test_a_client_that_sends_too_slowly_is_cut_off(front: str) -> None:
    limits = Limits(stall_seconds=0.5, slowest=1_000)
    async with serving(limits, **FRONTS[front]) as served, served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n")
        answer = asyncio.create_task(client.answer())
        while not answer.done():
            await client.send(b"x")
            await asyncio.sleep(0.05)
        assert (await answer).status == 408


@pytest.mark.parametrize("front", FRONTS)
async def test_empty_lines_keep_no_connection_open(front: str) -> None:
    limits = Limits(head_seconds=0.2, idle_seconds=0.2)
    async with serving(limits, **FRONTS[front]) as served, served.connect() as client:
        ended = asyncio.create_task(client.is_closed())
        while not ended.done():
            await client.send(b"\r\n")
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("front", FRONTS)
async def test_connections_without_requests_are_closed(front: str) -> None:
    limits = Limits()
    async with serving(limits, **FRONTS[front]) as served, served.connect() as idle:
        assert (await idle.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).status == 200
        shorten(limits, idle_seconds=0.2)
        assert (await idle.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).status == 200
        assert await idle.is_closed()
        shorten(limits, head_seconds=0.2)
        async with served.connect() as silent:
            assert await silent.is_closed()
        await eventually(lambda: not served.server.admission.open)


@pytest.mark.parametrize("aborts", [True, False])
async def test_an_application_hears_that_its_client_has_gone(aborts: bool) -> None:
    heard = list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while not heard or heard[-1] != "http.disconnect":
            heard.append((await receive())["type"])

    async with serving(app=app) as served, served.connect() as client:
        await client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await eventually(lambda: heard == ["http.request"])
        if aborts:
            client.writer.transport.abort()
        else:
            client.writer.close()
        await eventually(lambda: heard == ["http.request", "http.disconnect"])


async def test_a_client_that_closes_its_half_at_once_is_answered(client: Client) -> None:
    await client.send(b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n")
    client.writer.write_eof()
    assert (await client.answer()).body == b"GET /a "
    assert await client.is_closed()


async def test_a_body_that_the_application_does_not_read_stops_its_client() -> None:
    reads, body, received = asyncio.Event(), b"x" * 30_000_000, 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal received
        await reads.wait()
        while received < len(body):
            received += len((await receive())["body"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with serving(Limits(body=len(body)), app=app) as served, served.connect() as client:
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body))
        sent = await client.send_until_stopped(body)
        assert sent < 15_000_000  # what the sockets hold
        reads.set()
        await client.send(body[sent:])
        assert (await client.answer()).status == 204
