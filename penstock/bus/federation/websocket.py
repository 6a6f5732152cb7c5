"""What both ends of a websocket do: send the lines of many channels, and notice that the other end has gone."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from penstock.bus.federation.frames import DATA, ID_BYTES

FRAME_BYTES: Final = 1 << 18
"""No more lines are added to a frame that would then have more bytes."""
HEAD_BYTES: Final = ID_BYTES + len(DATA)


class _Frame:
    """What goes out in one frame: data of a kind for a channel."""

    __slots__ = ("channel", "kind", "lines", "size")

    def __init__(self, channel: bytes, kind: bytes) -> None:
        self.channel, self.kind = channel, kind
        self.lines: list[bytes] = []
        self.size = 0


class Writer:
    """Frames on their way to one websocket. ``written`` is called after each, ``idle`` whenever all are written.

    The other end takes no frame of more than ``most`` bytes, so lines are put together within that.
    """

    def __init__(self, written: Callable[[], None], idle: Callable[[], None], most: int) -> None:
        self._fits = min(FRAME_BYTES, most - HEAD_BYTES)
        self._written, self._idle = written, idle
        self._frames: deque[_Frame] = deque()
        self._open: dict[bytes, _Frame] = {}
        """The frame of each channel to which lines may be added."""
        self.size = 0
        """Bytes that wait."""
        self._news = asyncio.Event()

    def send(self, channel: bytes, line: bytes) -> None:
        """Send a line of a channel, with those that wait."""
        found = self._open.get(channel)
        if found is None or found.size + len(line) > self._fits:
            found = self._open[channel] = _Frame(channel, DATA)
            self._frames.append(found)
            self._news.set()
        self._add(found, line)

    def send_alone(self, channel: bytes, kind: bytes, data: bytes = b"") -> None:
        """Send a frame by itself."""
        self._open.pop(channel, None)
        found = _Frame(channel, kind)
        self._frames.append(found)
        self._add(found, data)
        self._news.set()

    def wake(self) -> None:
        """Have ``idle`` called once all is written, though nothing new may be sent."""
        self._news.set()

    async def run(self, connection: Connection) -> None:
        """Write to ``connection`` until it is closed."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._frames:
                    found = self._frames.popleft()
                    if self._open.get(found.channel) is found:
                        del self._open[found.channel]
                    await connection.send(b"".join((found.channel, found.kind, *found.lines)))
                    self.size -= found.size
                    self._written()
                self._idle()
        except ConnectionClosed:
            return

    def _add(self, found: _Frame, line: bytes) -> None:
        found.lines.append(line)
        found.size += len(line)
        self.size += len(line)


async def keep_alive(connection: Connection, interval: float, timeout: float, reads: Callable[[], bool]) -> None:  # noqa: ASYNC109  # of each ping
    """Ping every ``interval`` seconds; end the connection if no pong comes for ``timeout`` seconds.

    While ``reads()`` is False the connection is not read, so that no pong can come: that is no silence.
    """
    try:
        while True:
            await asyncio.sleep(interval)
            async with asyncio.timeout(timeout):
                pong = asyncio.ensure_future(await connection.ping())
            while not pong.done():
                read = reads()
                await asyncio.wait({pong}, timeout=timeout)
                if not pong.done() and read and reads():
                    raise TimeoutError
    except ConnectionClosed:
        return
    except TimeoutError:
        connection.transport.abort()
