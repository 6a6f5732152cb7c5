"""Client of HTTP/1.1 with one connection that it keeps: requests, and answers with a Content-Length."""

import asyncio
from typing import Final, NamedTuple

HEAD_BYTES: Final = 65_536


class Broken(Exception):
    """The connection has ended before an answer."""


class Answer(NamedTuple):
    """Status, headers with names in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One connection to ``host`` and ``port``, opened for the first request and after each break."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, target: str, body: bytes = b"") -> Answer:
        """Return the answer to a request. Raise ``Broken`` if the connection ends before it."""
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port, limit=HEAD_BYTES)
            reader, writer = self._streams
            writer.write(head.encode() + body)
            answer = await _read(reader)
        except (OSError, EOFError) as error:
            self.close()
            raise Broken("the connection ended before an answer") from error
        except BaseException:  # cancelled: what comes later would be taken for the next answer
            self.close()
            raise
        if answer.headers.get("connection") == "close":
            self.close()
        return answer

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def is_served(client: Client) -> bool:
    """Return whether a page of the composition comes."""
    try:
        return (await client.ask("GET", "/days/2012-01-01")).status == 200
    except Broken:
        return False


async def _read(reader: asyncio.StreamReader) -> Answer:
    """Read one answer to a request that was not HEAD."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Answer(int(first.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0))))
