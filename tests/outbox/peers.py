"""Peers of an outbox on the wire: some keep to the protocol, others write any bytes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from penstock.outbox.frames import Kind, MessageFrame, Reader, reason_in
from penstock.outbox.hello import hello
from penstock.outbox.wire import Disconnected, Identity, Limits, Listener, Peer

SECRET = "correct horse battery staple"
ID = bytes(range(16))
HERE, THERE = Identity("127.0.0.1:0", b"h" * 16), Identity("127.0.0.1:0", b"t" * 16)


def message(seq: int, data: bytes = b"data") -> MessageFrame:
    return MessageFrame(seq, ID, ("orders",), data, 1.0)


class Receiving:
    """What ``listen`` calls: keeps what comes and acknowledges it while ``acknowledges`` is set."""

    def __init__(self) -> None:
        self.messages, self.ended = list[MessageFrame](), list[str]()
        self.peers = list[Peer]()
        self.acknowledges = asyncio.Event()
        self.acknowledges.set()

    async def __call__(self, peer: Peer) -> None:
        self.peers.append(peer)
        try:
            while True:
                found = await peer.receive()
                self.messages += found
                await self.acknowledges.wait()
                peer.acknowledge(found[-1].seq)
        except Disconnected as error:
            self.ended.append(str(error))


async def all_acknowledged(peer: Peer, upto: int) -> None:
    async with asyncio.timeout(60):
        while (await peer.acknowledged()).upto < upto:
            pass


class Raw:
    """A peer without scruples: writes any bytes, and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer, self._frames = reader, writer, Reader(2**25)

    async def write(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def frames(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield what comes until the other side closes."""
        with suppress(ConnectionError):
            async with asyncio.timeout(60):
                while data := await self._reader.read(65_536):
                    for found in self._frames.feed(data):
                        yield found

    async def reasons(self) -> list[str]:
        """Wait until the other side closes and return why, as it says."""
        return [reason_in(body) async for kind, body in self.frames() if kind == Kind.BYE]


@asynccontextmanager
async def raw_at(address: str) -> AsyncIterator[Raw]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def raw(listener: Listener) -> AbstractAsyncContextManager[Raw]:
    return raw_at(listener.addresses[0])


@asynccontextmanager
async def impostor(behave: Callable[[Raw], Awaitable[None]]) -> AsyncIterator[str]:
    """Yield the address of a listener without scruples."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behave(Raw(reader, writer))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def greeting(limits: Limits | None = None) -> bytes:
    return hello(THERE, limits or Limits(), wanted="", has_secret=False)
