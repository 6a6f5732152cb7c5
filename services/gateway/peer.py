"""One websocket of a peer: its channels with their objects, and what is under way in both directions."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from penstock.base.errors import PenstockError
from penstock.bus.federation.frames import CLOSE, DATA, ID_BYTES, READY, Lines, dumped, methods_line
from penstock.bus.federation.site import MAX_FRAME
from penstock.bus.federation.websocket import Writer, keep_alive
from penstock.core.tasks import Tasks
from services.gateway.confirmations import Confirmations
from services.gateway.creation import created
from services.gateway.served import Gateway, Served
from services.gateway.window import Window

REFUSED_SECONDS: Final = 1.0
"""Seconds until a refused channel is closed: Node's client opens another one at once."""


class Peer:
    """A websocket, from its login to its end: ``run`` is its whole life."""

    def __init__(self, gateway: Gateway, connection: ServerConnection) -> None:
        self.gateway, self.connection = gateway, connection
        self._settings = gateway.settings
        self._objects: dict[bytes, Served | None] = {}
        """The object of each channel; None while it is created or refused."""
        self._lines: dict[bytes, Lines] = {}
        self._early: dict[bytes, list[bytes]] = {}
        """Frames that came while an object was being created."""
        self._tasks = Tasks()
        self._writer = Writer(self._written, lambda: self._confirmations.ping(), MAX_FRAME)
        self._calls = self._call_bytes = 0
        self._room = asyncio.Event()
        self._drained = asyncio.Event()
        self._reads = True
        self._confirmations = Confirmations(connection, self._writer.wake)

    async def run(self) -> None:
        """Carry out what the peer sends until the websocket ends; then leave all of its objects."""
        own = [asyncio.create_task(self._writer.run(self.connection)), asyncio.create_task(self._keep_alive())]
        try:
            while True:
                self._received(await self.connection.recv(decode=False))
                while self._is_full:
                    self._reads = False
                    self._room.clear()
                    await self._room.wait()
                self._reads = True
        except ConnectionClosed:
            pass
        finally:
            self._early.clear()
            self._confirmations.end()
            for task in own:
                task.cancel()
            closing = [each.close() for each in self._objects.values() if each]
            await asyncio.gather(*own, *closing, *self._tasks, return_exceptions=True)

    def count(self, what: str, many: int = 1) -> None:
        """Add to a counter of the gateway."""
        self.gateway.counters[what] += many

    def begins(self, calls: int, size: int) -> None:
        """Count calls, and their bytes, as under way."""
        self._calls += calls
        self._call_bytes += size

    def ends(self, calls: int, size: int) -> None:
        """Count them as under way no more."""
        self._calls -= calls
        self._call_bytes -= size
        if not self._is_full:
            self._room.set()

    def send(self, channel: bytes, line: bytes) -> None:
        """Send a line of a channel, in one frame with those that wait."""
        self._writer.send(channel, line)

    def confirm_by_ping(self, window: Window) -> None:
        """Confirm the messages of ``window`` once the peer has them, as a pong says that follows them."""
        self._confirmations.add(window)

    async def leave(self, served: Served) -> None:
        """End an object whose session goes on elsewhere."""
        self._objects.pop(served.channel, None)
        self._lines.pop(served.channel, None)
        await served.close()
        self._writer.send_alone(served.channel, CLOSE)

    @property
    def has_room(self) -> bool:
        """Return whether more may be sent that the peer has not asked for."""
        return self._writer.size < self._settings.call_bytes

    async def room(self) -> None:
        """Wait until more may be sent: see ``has_room``."""
        while not self.has_room:
            self._drained.clear()
            await self._drained.wait()

    @property
    def _is_full(self) -> bool:
        return (
            self._calls > self._settings.max_calls
            or self._call_bytes > self._settings.call_bytes
            or self._writer.size > self._settings.call_bytes
        )

    def _received(self, frame: bytes) -> None:
        channel, kind, data = frame[:ID_BYTES], frame[ID_BYTES : ID_BYTES + 1], frame[ID_BYTES + 1 :]
        self.count("frames")
        if kind == CLOSE:
            self._close(channel)
        elif kind != DATA or not data:
            self.count("errors")
        elif channel not in self._objects:
            self._create(channel, data)
        elif (served := self._objects[channel]) is not None:
            self._feed(channel, served, data)
        elif channel in self._early and sum(map(len, self._early[channel])) < self._settings.max_frame:
            self._early[channel].append(data)

    def _feed(self, channel: bytes, served: Served, data: bytes) -> None:
        try:
            served.take(self._lines[channel].feed(data))
        except (ValueError, TypeError, PenstockError) as error:
            self.count("errors")
            served.emit("error", [served.told(error)])
            self._close(channel)
            self._close_later(channel)

    def _close(self, channel: bytes) -> None:
        served = self._objects.pop(channel, None)
        self._lines.pop(channel, None)
        self._early.pop(channel, None)
        if served:
            self._spawn(served.close())

    def _create(self, channel: bytes, data: bytes) -> None:
        if len(self._objects) >= self._settings.max_objects:
            self.count("refused")
            self._writer.send_alone(channel, CLOSE)
            return
        self._objects[channel] = None
        try:
            new, session = created(self, channel, data)
        except (ValueError, PenstockError) as error:
            self.count("refused")
            self._writer.send_alone(channel, DATA, dumped({"error": self.gateway.told(error)}) + b"\n")
            self._close_later(channel)
            return
        self._early[channel] = []
        self._spawn(self._begin(new, session))

    async def _begin(self, served: Served, session: str | None) -> None:
        """Announce the object, after the one whose session it continues was left."""
        if session is not None:
            await self.gateway.take_over(session, served)
        channel = served.channel
        if channel not in self._early:  # closed meanwhile
            await served.close()
            return
        self._objects[channel] = served
        self._lines[channel] = Lines(self._settings.max_frame)
        self.count("objects")
        self._writer.send_alone(channel, DATA, READY)
        self.send(channel, methods_line(served.names))
        for data in self._early.pop(channel):
            if self._objects.get(channel) is served:
                self._feed(channel, served, data)

    def _close_later(self, channel: bytes) -> None:
        """Ignore the channel for a while, then close it."""
        self._objects[channel] = None

        def close() -> None:
            if self._objects.get(channel, self) is None and channel not in self._early:
                del self._objects[channel]
                self._writer.send_alone(channel, CLOSE)

        asyncio.get_running_loop().call_later(REFUSED_SECONDS, close)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.begin(work)

    def _written(self) -> None:
        if not self._is_full:
            self._room.set()
        if self.has_room:
            self._drained.set()

    async def _keep_alive(self) -> None:
        interval, timeout = self._settings.ping_interval, self._settings.ping_timeout
        await keep_alive(self.connection, interval, timeout, lambda: self._reads)
