"""TCP proxy that adds latency: it forwards all bytes half a round trip later, in order, in both directions.

``python -m bench.delay PORT SERVER_PORT ROUND_TRIP`` (in seconds) listens at PORT. Its buffer has no limit, so it
limits throughput only by its own processor time.
"""

import asyncio
import sys
from collections import deque
from typing import Final, cast

CHUNK_BYTES: Final = 1 << 20
"""Maximum bytes per read."""


class Pipe(asyncio.BufferedProtocol):
    """One end of the link: bytes received here are sent at ``far`` after ``delay`` seconds."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._buffer = bytearray(CHUNK_BYTES)
        self._due: deque[tuple[float, bytes | None]] = deque()
        """Bytes to forward, each with its time; None for the end."""
        self._loop = asyncio.get_running_loop()
        self.near: asyncio.Transport | None = None
        self.far: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.near = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._delay_it(bytes(memoryview(self._buffer)[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._delay_it(None)

    def _delay_it(self, chunk: bytes | None) -> None:
        self._due.append((self._loop.time() + self._delay, chunk))
        if len(self._due) == 1:
            self._loop.call_at(self._due[0][0], self._hand_on)

    def _hand_on(self) -> None:
        assert self.far
        now = self._loop.time()
        while self._due and self._due[0][0] <= now:
            chunk = self._due.popleft()[1]
            if chunk is None:
                self.far.close()
            else:
                self.far.write(chunk)
        if self._due:
            self._loop.call_at(self._due[0][0], self._hand_on)


class Link(Pipe):
    """The end that clients connect to; it creates the other end."""

    def __init__(self, server_port: int, delay: float) -> None:
        super().__init__(delay)
        self._server_port = server_port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.near
        self.near.pause_reading()
        self._connecting = asyncio.create_task(self._connect(self.near))

    async def _connect(self, near: asyncio.Transport) -> None:
        other = Pipe(self._delay)
        other.far = near
        try:
            self.far, _ = await self._loop.create_connection(lambda: other, "127.0.0.1", self._server_port)
        except OSError:
            near.abort()
        else:
            near.resume_reading()


async def serve(port: int, server_port: int, round_trip: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Link(server_port, round_trip / 2), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    port, server_port, round_trip = sys.argv[1:]
    asyncio.run(serve(int(port), int(server_port), float(round_trip)))
