"""The network between the sites: each is reached through a port here, and can be taken off the net."""

import asyncio
from contextlib import suppress
from typing import Final, Self

CHUNK: Final = 65_536


class Net:
    """Forwards connections; who opened one is known by the address that its first bytes show."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        """Where others reach a site, by its name."""
        self.refused = 0
        """Connections that were not let through."""
        self._cut = set[str]()
        self._servers = list[asyncio.Server]()
        self._open = dict[asyncio.StreamWriter, set[str]]()
        """Each end of each connection, with the names of the two sites."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        while self._open:
            for writer in self._open:
                writer.transport.abort()
            await asyncio.sleep(0.01)
        for server in self._servers:
            await server.wait_closed()

    async def add(self, name: str, port: int) -> str:
        """Return the address at which others reach the site ``name``, which listens at ``port`` of 127.0.0.1."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open[writer] = {name}
            try:
                with suppress(OSError):
                    await self._carry(name, port, reader, writer)
            finally:
                writer.transport.abort()
                del self._open[writer]

        server = await asyncio.start_server(accepted, "127.0.0.1")
        self._servers.append(server)
        self.addresses[name] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return self.addresses[name]

    def cut(self, name: str) -> None:
        """Take ``name`` off the net: end its connections, those to it and those from it, and refuse new ones."""
        self._cut.add(name)
        for writer, sites in [*self._open.items()]:
            if name in sites:
                writer.transport.abort()

    def mend(self, name: str) -> None:
        self._cut.discard(name)

    async def _carry(self, name: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(CHUNK)
        sites = {name, *(other for other, address in self.addresses.items() if address.encode() in first)}
        if sites & self._cut:
            self.refused += 1
            return
        there, back = await asyncio.open_connection("127.0.0.1", port)
        self._open[writer] = self._open[back] = sites
        try:
            back.write(first)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_forward(reader, back))
                tasks.create_task(_forward(there, writer))
        except* OSError:
            pass
        finally:
            back.transport.abort()
            del self._open[back]


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, until one of the two ends; then end the other, too."""
    while chunk := await reader.read(CHUNK):
        writer.write(chunk)
        await writer.drain()
    raise ConnectionResetError
