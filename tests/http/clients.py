"""Servers in this process for tests, and a client that sends any bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from common.http.direct import Exchange
from common.http.limits import Limits
from common.http.server import HttpServer, listening_socket
from tests.support.harness import PATIENCE

PIECE_BYTES: Final = 65_536


def echo(exchange: Exchange) -> None:
    """Answer at once with the body, or with method, path and query if there is none."""
    line = f"{exchange.method} {exchange.path} {exchange.query}".encode()
    exchange.respond(200, [(b"content-type", b"text/plain")], exchange.body or line)


async def echo_app(scope: Any, receive: Any, send: Any) -> None:
    """Do the same as an ASGI application."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    line = f"{scope['method']} {scope['raw_path'].decode()} {scope['query_string'].decode()}".encode()
    body = body or line
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def shorten(limits: Limits, **seconds: float) -> None:
    """Give the clients of a server that runs less time: what must come in time has come."""
    for name, value in seconds.items():
        object.__setattr__(limits, name, value)


@dataclass
class Served:
    server: HttpServer
    port: int

    def connect(self) -> "Client":
        return Client(self.port)


@asynccontextmanager
async def serving(limits: Limits | None = None, **how: Any) -> AsyncIterator[Served]:
    """Yield a server on a free port, by default one that echoes."""
    server = HttpServer(limits or Limits(), **(how or {"handler": echo}))
    with listening_socket("127.0.0.1", 0) as listening:
        await server.start(listening)
        try:
            yield Served(server, listening.getsockname()[1])
        finally:
            await server.drain(0)
            assert server.admission.body_bytes == 0


class Client:
    """One connection, on which a test writes whatever it likes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Send; ignore that the server has closed the connection."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            pass

    async def send_until_stopped(self, data: bytes, seconds: float = 0.5) -> int:
        """Send ``data`` until the server reads none of it for ``seconds``; return how much was sent or is buffered."""
        for first in range(0, len(data), PIECE_BYTES):
            self.writer.write(data[first : first + PIECE_BYTES])
            try:
                async with asyncio.timeout(seconds):
                    await self.writer.drain()
            except TimeoutError:
                return min(first + PIECE_BYTES, len(data))
        return len(data)

    async def answer(self, *, of: str = "GET") -> "Answer":
        """Read one answer. Raise ``IncompleteReadError`` if the connection ends before."""
        async with asyncio.timeout(PATIENCE):
            start, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines if line)]
            fields = dict(headers)
            status = int(start.split()[1])
            body = b""
            if of != "HEAD" and "content-length" in fields:
                body = await self.reader.readexactly(int(fields["content-length"]))
            elif fields.get("transfer-encoding") == "chunked":
                body = await self._chunks()
            return Answer(status, headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body

    async def ask(self, request: bytes, *, of: str = "GET") -> "Answer":
        await self.send(request)
        return await self.answer(of=of)

    async def is_closed(self) -> bool:
        """Wait for the end of the connection; return whether nothing came before."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((pair[1] for pair in self.headers if pair[0] == name), None)
