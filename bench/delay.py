"""TCP proxy that adds latency: it forwards all bytes half a round trip later, in order, in both directions.

``python -m bench.delay PORT SERVER_PORT ROUND_TRIP`` (in seconds) listens at PORT. Its buffer has no limit, so it
limits throughput only by its own processor time.
"""

import asyncio
import sys
from collections import deque

from penstock.testing.proxy import Proxy, ProxyConnection, Stream


class Link(Proxy):
    def __init__(self, port: int, listen: int, round_trip: float) -> None:
        super().__init__(port, listen=listen)
        self._round_trip = round_trip

    def connection(self, here: Stream) -> ProxyConnection:
        return _LateConnection(self, here, self._round_trip / 2)


class _LateConnection(ProxyConnection):
    """A connection that goes on reading while what it has read waits for its time."""

    def __init__(self, proxy: Proxy, here: Stream, delay: float) -> None:
        super().__init__(proxy, here)
        self._late = delay
        self._due: dict[asyncio.StreamWriter, deque[bytes]] = {}

    async def forward_request(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        self._due.setdefault(writer, deque()).append(data)
        asyncio.get_running_loop().call_later(self._late, self._send, writer)
        return True

    forward_reply = forward_request

    def _send(self, writer: asyncio.StreamWriter) -> None:
        data = self._due[writer].popleft()
        if not writer.is_closing():
            writer.write(data)


async def serve(port: int, server_port: int, round_trip: float) -> None:
    async with Link(server_port, port, round_trip):
        await asyncio.Event().wait()


if __name__ == "__main__":
    port, server_port, round_trip = sys.argv[1:]
    asyncio.run(serve(int(port), int(server_port), float(round_trip)))
