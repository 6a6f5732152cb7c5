"""A proxy between a process and a server, which sees every command and can inject a fault at any of them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from penstock.testing.chaos.frames import Frames, words_of
from penstock.testing.chaos.points import shape_of

CHUNK_BYTES = 65_536
TRANSACTION_ENDS = ("EXEC", "DISCARD")
"""Commands that end a MULTI."""


class Timing(Enum):
    """When the fault happens at a command."""

    BEFORE = "before the command"
    AFTER = "after the command, before its reply"


@dataclass(eq=False)
class ProxyFault:
    """A fault that happens once, at the next command of this ``shape``, or at any command if that is None.

    ``act`` is awaited before the connection is cut, for example to kill the process. If the fault ``swallows``, the
    connection is not cut, but passes nothing any more in either direction.
    """

    shape: str | None
    timing: Timing
    swallows: bool = False
    passes: float = 0.0
    """The share of the command, or of its reply, that is still passed on: 0.5 tears it in the middle."""
    act: Callable[[], Awaitable[None]] | None = None
    happened: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy:
    """Listen for one process and connect it to the server at ``port``."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: dict[ProxyConnection, asyncio.Task[None] | None] = {}
        self.fault: ProxyFault | None = None
        self.delay = 0.0
        """Seconds by which bytes are delayed, each way."""
        self.seen: list[str] = []
        """The shapes of all commands in order; those of a MULTI are added when it is executed."""

    @property
    def address(self) -> str:
        if self._server is None:
            raise RuntimeError("the proxy is not open")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._server.close()
        for connection in [*self._connections]:
            connection.close()
        await asyncio.gather(*filter(None, [*self._connections.values()]), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:  # the server is down: fail as a direct connection would
            writer.close()
            return
        connection = ProxyConnection(self, (reader, writer), there)
        self._connections[connection] = asyncio.current_task()
        try:
            await connection.run()
        finally:
            del self._connections[connection]

    def command(self, frame: bytes, queued: list[str]) -> ProxyFault | None:
        """Return the fault to inject at this command, if any; ``queued`` is what its connection has sent since MULTI.

        Record only MULTI and DISCARD of a discarded transaction (a check of rights): the rest is not executed.
        """
        shape = shape_of(words_of(frame))
        queued.append(shape)
        if queued[0] != "MULTI" or shape in TRANSACTION_ENDS:
            self.seen += [queued[0], shape] if shape == "DISCARD" else queued
            queued.clear()
        fault = self.fault
        if fault is None or (fault.shape is not None and fault.shape != shape):
            return None
        self.fault = None
        return fault


class ProxyConnection:
    """One connection of the process, and the one to the server that belongs to it."""

    def __init__(
        self,
        proxy: FaultProxy,
        here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy, self._here, self._there = proxy, here, there
        self._owed: deque[ProxyFault | None] = deque()
        """The fault to inject at each reply to come, if any."""
        self._silent = False
        self._queued: list[str] = []

    async def run(self) -> None:
        pumps = [asyncio.create_task(self._ask()), asyncio.create_task(self._answer())]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self.close()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _ask(self) -> None:
        frames, reader, writer = Frames(), self._here[0], self._there[1]
        while data := await self._received(reader):
            for frame in frames.whole(data):
                fault = self._proxy.command(frame, self._queued)
                if self._silent:
                    continue
                if fault and fault.timing is Timing.BEFORE:
                    if await self._inject(fault, frame, writer):
                        return
                    continue
                if writer.is_closing():
                    return
                self._owed.append(fault)
                writer.write(frame)
            if not await _sent(writer):
                return

    async def _answer(self) -> None:
        frames, reader, writer = Frames(), self._there[0], self._here[1]
        while data := await self._received(reader):
            for frame in frames.whole(data):
                if self._silent:
                    continue
                fault = None
                if self._owed and not frame.startswith(b">"):
                    fault = self._owed.popleft()
                if fault:
                    if await self._inject(fault, frame, writer):
                        return
                    continue
                if writer.is_closing():
                    return
                writer.write(frame)
            if not await _sent(writer):
                return

    async def _received(self, reader: asyncio.StreamReader) -> bytes:
        try:
            data = await reader.read(CHUNK_BYTES)
        except OSError:
            return b""
        if self._proxy.delay:
            await asyncio.sleep(self._proxy.delay)
        return data

    async def _inject(self, fault: ProxyFault, frame: bytes, writer: asyncio.StreamWriter) -> bool:
        """Return True if the connection is to be cut."""
        self._silent = True
        writer.write(frame[: int(len(frame) * fault.passes)])
        if fault.act:
            await fault.act()
        fault.happened.set()
        return not fault.swallows

    def close(self) -> None:
        """Close both connections at once, without sending what is buffered."""
        for _, writer in (self._here, self._there):
            writer.transport.abort()


async def _sent(writer: asyncio.StreamWriter) -> bool:
    """Return False if the other side has closed the connection."""
    try:
        await writer.drain()
    except OSError:
        return False
    return not writer.is_closing()
