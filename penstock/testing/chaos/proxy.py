"""A gate between a process and a server: it sees every command, and can break the connection at any of them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from penstock.testing.chaos.frames import Frames, words_of
from penstock.testing.chaos.points import shape_of

CHUNK = 65_536
ENDS = ("EXEC", "DISCARD")
"""What ends a MULTI."""


class Moment(Enum):
    """When, at a command, the blow falls."""

    BEFORE = "before the command"
    AFTER = "after the command, before its reply"


@dataclass(eq=False)
class Blow:
    """What happens, once, at the next command that has this ``shape``, or at any where it is None.

    ``act`` does more than to cut the connection, such as killing the process; where it ``swallows``, nothing is cut,
    and the connection says nothing any more in either direction.
    """

    shape: str | None
    moment: Moment
    swallows: bool = False
    act: Callable[[], Awaitable[None]] | None = None
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    at: str | None = None
    """The shape of the command that was struck."""


class Gate:
    """Listens for one process and connects it to the server at ``port``."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._links: dict[Link, asyncio.Task[None] | None] = {}
        self.blow: Blow | None = None
        self.delay = 0.0
        """Seconds that everything takes each way."""
        self.seen: list[str] = []
        """The shapes of all commands, as they came; those of a MULTI when it is executed."""

    @property
    def address(self) -> str:
        if self._server is None:
            raise RuntimeError("the gate is not open")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._server.close()
        for link in [*self._links]:
            link.cut()
        await asyncio.gather(*filter(None, [*self._links.values()]), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:  # the server is down: the client sees what it would see without us
            writer.close()
            return
        link = Link(self, (reader, writer), there)
        self._links[link] = asyncio.current_task()
        try:
            await link.run()
        finally:
            del self._links[link]

    def command(self, frame: bytes, queued: list[str]) -> Blow | None:
        """Return the blow that this one is struck with; ``queued`` is what its connection has sent since MULTI.

        Of a MULTI that is discarded, as a check of rights is, only its two ends are seen: nothing between them is done.
        """
        shape = shape_of(words_of(frame))
        queued.append(shape)
        if queued[0] != "MULTI" or shape in ENDS:
            self.seen += [queued[0], shape] if shape == "DISCARD" else queued
            queued.clear()
        blow = self.blow
        if blow is None or (blow.shape is not None and blow.shape != shape):
            return None
        self.blow, blow.at = None, shape
        return blow


class Link:
    """One connection of the process, and its other half."""

    def __init__(
        self,
        gate: Gate,
        here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._gate, self._here, self._there = gate, here, there
        self._owed: deque[Blow | None] = deque()
        """For every reply to come, the blow that falls then."""
        self._silent = False
        self._queued: list[str] = []

    async def run(self) -> None:
        pumps = [asyncio.create_task(self._ask()), asyncio.create_task(self._answer())]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self.cut()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _ask(self) -> None:
        frames, reader, writer = Frames(), self._here[0], self._there[1]
        while data := await self._received(reader):
            for frame in frames.whole(data):
                blow = self._gate.command(frame, self._queued)
                if self._silent:
                    continue
                if blow and blow.moment is Moment.BEFORE:
                    if await self._strike(blow):
                        return
                    continue
                if writer.is_closing():
                    return
                self._owed.append(blow)
                writer.write(frame)
            if not await _sent(writer):
                return

    async def _answer(self) -> None:
        frames, reader, writer = Frames(), self._there[0], self._here[1]
        while data := await self._received(reader):
            for frame in frames.whole(data):
                if self._silent:
                    continue
                blow = None
                if self._owed and not frame.startswith(b">"):
                    blow = self._owed.popleft()
                if blow:
                    if await self._strike(blow):
                        return
                    continue
                if writer.is_closing():
                    return
                writer.write(frame)
            if not await _sent(writer):
                return

    async def _received(self, reader: asyncio.StreamReader) -> bytes:
        try:
            data = await reader.read(CHUNK)
        except OSError:
            return b""
        if self._gate.delay:
            await asyncio.sleep(self._gate.delay)
        return data

    async def _strike(self, blow: Blow) -> bool:
        """Whether the connection is over."""
        self._silent = True
        if blow.act:
            await blow.act()
        blow.struck.set()
        return not blow.swallows

    def cut(self) -> None:
        """Close both halves, at once."""
        for _, writer in (self._here, self._there):
            writer.transport.abort()


async def _sent(writer: asyncio.StreamWriter) -> bool:
    """Whether the other side still takes anything."""
    try:
        await writer.drain()
    except OSError:
        return False
    return not writer.is_closing()
