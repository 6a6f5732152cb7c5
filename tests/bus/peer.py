"""A program of peers of `penstock.bus`, with the protocol and the roles of ``busmq_peer.js``."""

import asyncio
import json
import sys
from typing import Any

import structlog

from penstock.base.errors import PenstockError
from penstock.bus import Bus
from tests.bus.node import LONGEST_LINE
from tests.bus.peer_roles import ROLES, Take, run


class Place:
    """A peer: its bus, and what it does with a line once the bus is connected."""

    def __init__(self, number: int, role: str, name: str, options: dict[str, Any], urls: list[str]) -> None:
        self._number, self._role, self._name, self._options = number, role, name, options
        self._bus = Bus(*urls, patience=30)
        self._lines = asyncio.Queue[str | None]()
        run(self._play())

    def put(self, line: str | None) -> None:
        """Take a line; None disconnects."""
        self._lines.put_nowait(line)

    async def _play(self) -> None:
        async with self._bus:
            take = await ROLES[self._role](self._bus, self._out, self._name, self._options)
            while (line := await self._lines.get()) is not None:
                run(self._take(take, line))
        self._out("gone")

    async def _take(self, take: Take, line: str) -> None:
        try:
            await take(line)
        except PenstockError as error:
            self._out("raised", type(error).__name__)

    def _out(self, *values: Any) -> None:
        sys.stdout.write(json.dumps([self._number, *values]) + "\n")
        sys.stdout.flush()


async def main() -> None:
    """Do what the lines of stdin say, until it ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    places = dict[int, Place]()
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        number, what, *rest = json.loads(line)
        if what == "open":
            role, name, options, where = rest
            places[number] = Place(number, role, name, options, where["redis"])
        elif what == "line":
            places[number].put(rest[0])
        else:
            places.pop(number).put(None)


if __name__ == "__main__":
    asyncio.run(main())
