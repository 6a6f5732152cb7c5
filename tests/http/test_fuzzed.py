"""Any bytes as a request, any JSON as an answer: nothing fails, and whatever is sent is well-formed."""

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from common.http.answers import head
from common.http.message import answer_of, body_fields, parse, request_message
from penstock.core.connection import cancellable
from tests.http.clients import Answer, Client, serving
from tests.http.importing import Importing, importing

NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(str.encode)
VALUES = st.binary(max_size=20).filter(lambda value: not any(byte < 32 and byte != 9 for byte in value))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda more: st.lists(more, max_size=3) | st.dictionaries(st.text(max_size=8), more, max_size=3),
    max_leaves=8,
)
FIELDS = ("id", "meta", "status", "headers", "body", "body64", "error", "progress")
ANSWERS = st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["1-a", 200, 404, 10**30, [["a", "b"]]]))
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
TARGETS = st.text("abz019-._~!$&'()*+,;=:@%/?", max_size=30).map("/".__add__)
STATUSES = st.sampled_from([200, 201, 204, 299, 301, 304, 404, 418, 500, 599])
PIECES = st.sampled_from(
    [
        *(b"GET", b"POST", b" ", b"/", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\n", b"\r", b":", b"a", b"\x00", b"\xff"),
        *(b"Host: a\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
        *(b"Upgrade: h2c\r\nConnection: upgrade\r\n", b"Expect: 100-continue\r\n", b"0\r\n\r\n", b"3\r\nabc\r\n"),
        *(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"x" * 5_000),
    ]
)


@given(ANSWERS)
@settings(deadline=None, max_examples=100)
def test_any_answer_becomes_one_that_can_be_sent(message: Any) -> None:
    found = parse(json.dumps(message).encode())
    if found is None:
        return
    id, parsed = found
    answer = answer_of(parsed, id)
    assert 200 <= answer.status <= 599
    text = head(answer.status, answer.headers, b"")
    assert text.count(b"\r\n") == text.count(b"\n") == len(answer.headers) + 2


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=8), st.binary(max_size=50), st.text("/%ab?0", max_size=9))
def test_a_request_comes_out_of_its_message_as_it_went_in(
    headers: list[tuple[bytes, bytes]], body: bytes, path: str
) -> None:
    message = json.loads(request_message("1-a", "w:res:1", "PUT", path, path, headers, body, 1.5, 30))
    assert (message["path"], message["query"], message["id"]) == (path, path, "1-a")
    kept = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in message["headers"]]
    assert kept == headers
    carried = base64.b64decode(message["body64"]) if "body64" in message else message.get("body", "").encode()
    assert carried == body


LARGE_BODIES = st.one_of(st.just("a" * 70_000), st.text(max_size=9).map(lambda text: text * 30_000))

NESTED = st.dictionaries(st.sampled_from(["body", "a"]), LARGE_BODIES)


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["body", "body64", "other"]),
    st.one_of(LARGE_BODIES, st.lists(LARGE_BODIES, max_size=2)),
    st.fixed_dictionaries({}, optional={"body": st.text(max_size=3), "meta": NESTED}),
    st.booleans(),
)  # fmt: skip
def test_a_large_answer_means_what_its_json_says(field: str, value: Any, more: dict[str, Any], escaped: bool) -> None:
    answer = {"status": 200, **more, field: value, "id": "1-a"}
    parsed = parse(json.dumps(answer, ensure_ascii=escaped).encode())
    assert parsed is not None
    found, known = answer_of(parsed[1], "1-a"), answer_of(answer, "1-a")
    assert found == known


@given(st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=4))
@settings(deadline=None, max_examples=60)
def test_any_bytes_are_answered_well_formed_and_the_server_serves_on(sent: list[bytes]) -> None:
    asyncio.run(_survives(sent))


async def _survives(sent: list[bytes]) -> None:
    async with serving() as served, served.connect() as client, served.connect() as other:
        for piece in sent:
            await client.send(piece)
            await asyncio.sleep(0)
        answer = await other.ask(b"GET /fine HTTP/1.1\r\nHost: a\r\n\r\n")
        assert answer.body == b"GET /fine "
        client.writer.write_eof()
        async with asyncio.timeout(30):
            try:
                received = await client.reader.read()
            except ConnectionError:
                return
        _parse(received)


def _parse(received: bytes) -> None:
    """Fail if ``received`` is not a sequence of answers, each with its body."""
    while received:
        start, _, rest = received.partition(b"\r\n\r\n")
        lines = start.split(b"\r\n")
        assert lines[0].startswith(b"HTTP/1.1 ")
        fields = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines[1:])}
        size = int(fields.get(b"content-length", b"0"))
        assert len(rest) >= size
        received = rest[size:]
        httptools.HttpResponseParser(object()).feed_data(start + b"\r\n\r\n")


class Running:
    """An importer, one connection to it, and the event loop of both, for all examples of a test."""

    def __init__(self, url: str) -> None:
        self._runner, self._exits = asyncio.Runner(), AsyncExitStack()
        self.here: Importing
        self.client: Client
        self.run(self._start(url))

    def run(self, steps: Any) -> Any:
        return self._runner.run(steps)

    async def _start(self, url: str) -> None:
        redis = await self._exits.enter_async_context(cancellable(Redis.from_url(url)))
        await redis.flushall()
        self.here = await self._exits.enter_async_context(importing(redis, url))
        self.client = await self._exits.enter_async_context(self.here.connect())

    async def ask(self, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes) -> dict[str, Any]:
        """Send a request; return its message."""
        lines = [b"%b: %b\r\n" % pair for pair in [(b"host", b"a"), *headers]]
        size = b"content-length: %d\r\n\r\n" % len(body)
        await self.client.send(f"{method} {target} HTTP/1.1\r\n".encode() + b"".join(lines) + size + body)
        return await self.here.request()

    def close(self) -> None:
        self.run(self._exits.aclose())
        self._runner.close()


@pytest.fixture
def running(redis_url: str) -> Iterator[Running]:
    running = Running(redis_url)
    yield running
    running.close()


def test_any_request_and_any_answer_pass_an_importer_unchanged(running: Running) -> None:
    @settings(deadline=None, max_examples=100)
    @given(
        METHODS,
        TARGETS,
        st.lists(st.tuples(NAMES, VALUES.filter(lambda value: 127 not in value)), max_size=8),
        st.binary(max_size=99),
        STATUSES,
    )
    def passes(method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, status: int) -> None:
        headers = [(b"x-" + name, value.strip(b" \t")) for name, value in headers]
        found = running.run(exchange(method, target, headers, body, status))
        carried = b"" if method == "HEAD" or status in (204, 304) else body
        assert (found.status, found.body) == (status, carried)
        assert [pair for pair in found.headers if pair[0].startswith("x-")] == texts(headers)

    async def exchange(
        method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, status: int
    ) -> Answer:
        request = await running.ask(method, target, headers, body)
        path, _, query = target.partition("?")
        assert (request["method"], request["path"], request["query"]) == (method, path, query)
        given = [
            tuple(pair) for pair in request["headers"] if pair[0].startswith("x-") and pair[0] != "x-forwarded-for"
        ]
        assert given == texts(headers)
        fields = {name: request[name] for name in ("body", "body64") if name in request}
        assert fields == (body_fields(body) if body else {})
        await running.here.answer(request, status, headers=given, **fields)
        return await running.client.answer(of=method if status not in (204, 304) else "HEAD")

    passes()


def texts(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def test_any_json_as_an_answer_reaches_the_client_as_what_http_allows(running: Running) -> None:
    """And it ends nothing: all examples use one connection."""

    @settings(deadline=None, max_examples=100)
    @given(ANSWERS)
    def reaches(message: dict[str, Any]) -> None:
        running.run(
            answered({name: value for name, value in message.items() if name not in ("id", "meta", "progress")})
        )

    async def answered(message: dict[str, Any]) -> None:
        request = await running.ask("GET", "/", [], b"")
        expected = answer_of(message, request["id"])
        await running.here.redis.lpush(request["replyTo"], json.dumps({**message, "id": request["id"]}))
        has_none = expected.status in (204, 304)
        found = await running.client.answer(of="HEAD" if has_none else "GET")
        assert (found.status, found.body) == (expected.status, b"" if has_none else expected.body)

    reaches()


def test_any_json_as_progress_is_shown_and_harms_nothing(running: Running) -> None:
    @settings(deadline=None, max_examples=30)
    @given(st.lists(JSON, max_size=4))
    def shown(reports: list[Any]) -> None:
        found = running.run(reported(reports))
        assert found["state"] == "done"
        assert found.get("progress") == (reports[-1] if reports else None)

    async def reported(reports: list[Any]) -> Any:
        request = await running.ask("GET", "/", [(b"prefer", b"respond-async")], b"")
        accepted = await running.client.answer()
        for report in reports:
            text = json.dumps({"id": request["id"], "progress": report})
            await running.here.redis.lpush(request["replyTo"], text)
        await running.here.answer(request)
        await running.client.send(f"GET {accepted.header('location')} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        return json.loads((await running.client.answer()).body)

    shown()
