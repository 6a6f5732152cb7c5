"""A peer of a gateway by hand: it sends the frames that a test gives it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect

from penstock.bus.federation.frames import LISTENING, call_line
from services.gateway.creation import CLASSES
from services.gateway.listener import Listener
from tests.bus.gateway import SECRET, url_of

_ids = count(1)


class Raw:
    """One websocket."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.channels = dict[str, Channel]()
        self._reader = asyncio.create_task(self._read())

    async def create(self, type_: str = "queue", *args: Any, **more: Any) -> "Channel":
        """Return the channel of a new object that the gateway is ready for."""
        channel = self.channel()
        names = [*LISTENING, *CLASSES[type_].ROWS, "handled"] if type_ in CLASSES else []
        await channel.send(json.dumps({"type": type_, "methods": names, "args": args or ["foo"], **more}))
        assert await channel.next() == "ready"
        assert (await channel.next())["method"] == "methods"
        return channel

    def channel(self) -> "Channel":
        """Return a channel on which nothing was sent."""
        channel = Channel(self, f"{next(_ids):016x}")
        self.channels[channel.id] = channel
        return channel

    async def end(self) -> None:
        """Stop reading."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def _rows(self, id_: str) -> asyncio.Queue[Any]:
        return self.channels[id_].rows if id_ in self.channels else asyncio.Queue()

    async def _read(self) -> None:
        async for frame in self.connection:
            assert isinstance(frame, bytes)
            id_, kind, data = frame[:16].decode(), frame[16:17], frame[17:].decode()
            if kind == b"2":
                self._rows(id_).put_nowait("closed")
            elif data == "ready":
                self._rows(id_).put_nowait(data)
            else:
                for line in data.splitlines():
                    self._rows(id_).put_nowait(json.loads(line))


class Channel:
    """One channel; ``next`` returns what came on it: ``ready``, a line, or ``closed``."""

    def __init__(self, raw: Raw, id_: str) -> None:
        self.raw, self.id = raw, id_
        self.rows = asyncio.Queue[Any]()
        self._numbers = count(100)

    async def next(self) -> Any:
        """Return the next thing that comes."""
        async with asyncio.timeout(30):
            return await self.rows.get()

    async def send(self, data: str | bytes, kind: bytes = b"1") -> Self:
        """Send a frame."""
        body = data.encode() if isinstance(data, str) else data
        await self.raw.connection.send(self.id.encode() + kind + body)
        return self

    async def on(self, event: str, number: int) -> Self:
        """Listen to an event with a callback."""
        return await self.send(call_line("on", (event,), number))

    async def call(self, method: str, *values: Any) -> Any:
        """Call a method; return its callback's arguments, past the calls of other callbacks."""
        number = next(self._numbers)
        await self.send(call_line(method, values, number))
        while True:
            row = await self.next()
            if row == "closed" or row["method"] == number:
                return row if row == "closed" else row["arguments"]


@asynccontextmanager
async def raw(gateway: Listener, secret: str = SECRET, **options: Any) -> AsyncIterator[Raw]:
    """Yield a websocket to the gateway."""
    options = {"close_timeout": 1, **options}
    headers = {"Authorization": f"Bearer {secret}"}
    async with connect(url_of(gateway), additional_headers=headers, **options) as connection:
        peer = Raw(connection)
        try:
            yield peer
        finally:
            await peer.end()
