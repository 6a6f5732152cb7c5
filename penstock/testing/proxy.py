"""A proxy that forwards TCP connections to a local port; a subclass sees, changes, withholds or cuts what passes."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ssl import SSLContext
from typing import Final, Self

CHUNK_BYTES: Final = 65_536
TURNS: Final = 5
"""Turns of the event loop after which what was accepted last is among the connections, to be closed."""
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Forward = Callable[[bytes, asyncio.StreamWriter], Awaitable[bool]]


class Proxy:
    """Listen on loopback, at ``listen`` or any free port, and connect each client to the server at ``port``.

    With ``ssl`` clients speak TLS, and the server does not.
    """

    def __init__(self, port: int, *, listen: int = 0, ssl: SSLContext | None = None) -> None:
        self._port, self._listen, self._ssl = port, listen, ssl
        self._server: asyncio.Server | None = None
        self.connections: dict[ProxyConnection, asyncio.Task[None] | None] = {}
        self.delay = 0.0
        """Seconds by which bytes are delayed, each way."""

    @property
    def address(self) -> str:
        if self._server is None:
            raise RuntimeError("the proxy is not open")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._listen, ssl=self._ssl)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            for each in self._server.sockets:  # asyncio would drop what it accepts as the server closes, still open
                asyncio.get_running_loop().remove_reader(each.fileno())
            for _turn in range(TURNS):
                await asyncio.sleep(0)
            self._server.close()
        for connection in [*self.connections]:
            connection.close()
        await asyncio.gather(*filter(None, [*self.connections.values()]), return_exceptions=True)

    def connection(self, here: Stream) -> "ProxyConnection":
        """Return what forwards the connection of one client."""
        return ProxyConnection(self, here)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self.connection((reader, writer))
        self.connections[connection] = asyncio.current_task()
        try:
            with suppress(OSError):  # the server is down: fail as a direct connection would
                await connection.run(self._port)
        finally:
            connection.end()
            del self.connections[connection]


class ProxyConnection:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, here: Stream) -> None:
        self._proxy, self._here = proxy, here
        self._writers = [here[1]]

    async def run(self, port: int, first: bytes = b"") -> None:
        """Forward ``first`` and all that follows, until either side ends, or the connection is to be cut."""
        answers, asks = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(asks)
        asks.write(first)
        pumps = [
            asyncio.create_task(self._pump(self._here[0], asks, self.forward_request)),
            asyncio.create_task(self._pump(answers, self._here[1], self.forward_reply)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self.end()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def forward_request(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        """Write to the server what the client has sent; return False to cut the connection."""
        writer.write(data)
        return True

    async def forward_reply(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        """Write to the client what the server has sent; return False to cut the connection."""
        writer.write(data)
        return True

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, forward: Forward) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self._proxy.delay:
                    await asyncio.sleep(self._proxy.delay)
                if writer.is_closing() or not await forward(data, writer):
                    return
                await writer.drain()

    def end(self) -> None:
        """Close both connections once what is buffered is sent."""
        for writer in self._writers:
            writer.close()

    def close(self) -> None:
        """Close both connections at once, without sending what is buffered."""
        for writer in self._writers:
            writer.transport.abort()
