"""The connections of one server: how many there are, from where, and which are overdue."""

import asyncio
from collections import Counter
from collections.abc import Container
from email.utils import formatdate
from typing import Final, Protocol

from common.http.access import Access
from common.http.limits import Limits

SWEEP_SECONDS: Final = 0.25


class Connection(Protocol):
    """What ``Admission`` needs of a connection."""

    @property
    def due(self) -> float:
        """Return the loop's time at which the connection is overdue."""

    @property
    def address(self) -> str:
        """Return the client's address."""

    @property
    def unread(self) -> int:
        """Return how many bytes of answers wait in this process until the client reads."""

    def overdue(self) -> None:
        """End the connection: its client took too long."""

    def shutdown(self) -> None:
        """End the connection once no request is in hand."""

    def abort(self) -> None:
        """Cut the connection."""


class Admission:
    """Admits connections and bodies within limits.

    While ``watch`` runs, it ends connections that are overdue, and those whose clients let too much wait unread.
    """

    def __init__(self, limits: Limits, trusted: Container[str] = (), access: Access | None = None) -> None:
        self.limits, self.trusted = limits, trusted
        self.most = limits.connections
        """Maximum number of connections at a time; fewer if the process may not have as many files."""
        self.access = access or Access()
        self.open: set[Connection] = set()
        self.date = b""
        """The line of the header ``date``, renewed every second."""
        self.default_headers: list[tuple[bytes, bytes]] = []
        """The same as uvicorn has it."""
        self._renew_date()
        self.draining = False
        """Whether connections end with the answer under way."""
        self.body_bytes = 0
        """Bytes of all bodies in hand."""
        self._from, self._body_bytes_from = Counter[str](), Counter[str]()

    def enter(self, connection: Connection) -> bool:
        """Add ``connection``; return False if there are too many already, in all or from its address."""
        self.open.add(connection)
        address = connection.address
        self._from[address] += 1
        if address not in self.trusted and self._from[address] > self.limits.per_address:
            return False
        return len(self.open) <= self.most

    def leave(self, connection: Connection) -> None:
        """Remove ``connection``."""
        self.open.discard(connection)
        address = connection.address
        self._from[address] -= 1
        if self._from[address] <= 0:
            del self._from[address]

    def hold(self, address: str, size: int) -> bool:
        """Note ``size`` more bytes of bodies in hand; return False if they are too many, in all or from ``address``."""
        self.body_bytes += size
        self._body_bytes_from[address] += size
        share = self.limits.bodies if address in self.trusted else self.limits.bodies_per_address
        return self.body_bytes <= self.limits.bodies and self._body_bytes_from[address] <= share

    def let_go(self, address: str, size: int) -> None:
        """Note that ``size`` bytes of bodies are not in hand any more."""
        self.body_bytes -= size
        self._body_bytes_from[address] -= size
        if not self._body_bytes_from[address]:
            del self._body_bytes_from[address]

    async def watch(self) -> None:
        """End connections as the class says, and renew ``date``, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._renew_date()
            now = loop.time()
            for connection in [each for each in self.open if each.due <= now]:
                connection.overdue()
            self._cut_unread()

    def _cut_unread(self) -> None:
        """Cut connections of the address for which most waits, the largest first, while all answers are too large.

        One answer always goes.
        """
        unread = {each: each.unread for each in self.open if each.unread}
        excess = sum(unread.values()) - self.limits.bodies
        if excess <= 0:
            return
        waits = Counter[str]()
        for connection, size in unread.items():
            waits[connection.address] += size
        ((worst, _),) = waits.most_common(1)
        of_worst = sorted((each for each in unread if each.address == worst), key=unread.__getitem__, reverse=True)
        for connection in of_worst[:-1]:
            if excess > 0:
                excess -= unread[connection]
                self.access.count("unread")
                connection.abort()

    def _renew_date(self) -> None:
        date = formatdate(usegmt=True).encode()
        self.date, self.default_headers = b"date: %b\r\n" % date, [(b"date", date)]
