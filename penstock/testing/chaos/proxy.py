"""A proxy between a process and a server, which sees every command and can inject a fault at any of them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

from penstock.testing.chaos.frames import Frames, words_of
from penstock.testing.chaos.points import shape_of
from penstock.testing.proxy import Proxy, ProxyConnection, Stream

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


class FaultProxy(Proxy):
    """Listen for one process and connect it to the server at ``port``."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.fault: ProxyFault | None = None
        self.seen: list[str] = []
        """The shapes of all commands in order; those of a MULTI are added when it is executed."""

    def connection(self, here: Stream) -> ProxyConnection:
        return FaultConnection(self, here)

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


class FaultConnection(ProxyConnection):
    """A connection of the process, cut into commands and replies."""

    def __init__(self, proxy: FaultProxy, here: Stream) -> None:
        super().__init__(proxy, here)
        self._command = proxy.command
        self._commands, self._replies = Frames(), Frames()
        self._owed: deque[ProxyFault | None] = deque()
        """The fault to inject at each reply to come, if any."""
        self._silent = False
        self._queued: list[str] = []

    async def forward_request(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        for frame in self._commands.whole(data):
            fault = self._command(frame, self._queued)
            if self._silent:
                continue
            if fault and fault.timing is Timing.BEFORE:
                if await self._inject(fault, frame, writer):
                    return False
                continue
            if writer.is_closing():
                return False
            self._owed.append(fault)
            writer.write(frame)
        return True

    async def forward_reply(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        for frame in self._replies.whole(data):
            if self._silent:
                continue
            fault = self._owed.popleft() if self._owed and not frame.startswith(b">") else None
            if fault:
                if await self._inject(fault, frame, writer):
                    return False
                continue
            if writer.is_closing():
                return False
            writer.write(frame)
        return True

    async def _inject(self, fault: ProxyFault, frame: bytes, writer: asyncio.StreamWriter) -> bool:
        """Return True if the connection is to be cut."""
        self._silent = True
        writer.write(frame[: int(len(frame) * fault.passes)])
        if fault.act:
            await fault.act()
        fault.happened.set()
        return not fault.swallows

    def end(self) -> None:
        """Send no more of what is buffered, even if only one side has ended."""
        self.close()
