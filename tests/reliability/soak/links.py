"""Proxy whose connections can be cut at a random byte, or held back in one direction for a while."""

import random
import socket
import threading
import time
from typing import Final

from tests.reliability.proxy import Proxy, ProxyConnection, received, send

DIRECTIONS: Final = ("to the server", "from the server")


class FaultyConnection(ProxyConnection):
    """A connection with faults; ``hold`` and ``tear`` may be called from any thread."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.over = False
        self._open = {direction: threading.Event() for direction in DIRECTIONS}
        self._left: dict[str, int] = {}
        for event in self._open.values():
            event.set()
        super().__init__(proxy, client, server)

    def _forward_requests(self) -> None:
        self._pump(DIRECTIONS[0], self._client, self._server)

    def _forward_replies(self) -> None:
        self._pump(DIRECTIONS[1], self._server, self._client)

    def _pump(self, direction: str, source: socket.socket, target: socket.socket) -> None:
        while data := received(source):
            self._open[direction].wait()
            if (left := self._left.get(direction)) is not None:
                send(target, data[:left])
                self._left[direction] = left - len(data)
                if left <= len(data):
                    break
            else:
                send(target, data)
        self.over = True
        self.cut()

    def hold(self, direction: str) -> None:
        """Hold back data in this direction until ``release``."""
        self._open[direction].clear()

    def release(self, direction: str) -> None:
        """Forward the data held back and all that follows, even if the other side has given up."""
        self._open[direction].set()

    def tear(self, direction: str, after: int) -> None:
        """Cut the connection after ``after`` more bytes in this direction."""
        self._left[direction] = after

    def close(self) -> None:
        for event in self._open.values():
            event.set()
        super().close()


class FaultyProxy(Proxy):
    """Proxy that breaks its connections at random."""

    def connection(self, client: socket.socket, server: socket.socket) -> ProxyConnection:
        over = [link for link in self._connections if link not in self.open_links]
        for each in over:
            each.close()
            self._connections.remove(each)
        return FaultyConnection(self, client, server)

    @property
    def open_links(self) -> list[FaultyConnection]:
        return [link for link in list(self._connections) if isinstance(link, FaultyConnection) and not link.over]

    def cut(self) -> None:
        """Close all connections."""
        for link in self.open_links:
            link.cut()

    def tear(self, rng: random.Random) -> None:
        """Cut each connection at a random byte of the following data."""
        for link in self.open_links:
            link.tear(rng.choice(DIRECTIONS), rng.choice((0, 1, rng.randrange(1, 200), rng.randrange(1, 20_000))))

    def hold(self, direction: str, seconds: float, *, cut: bool) -> None:
        """Hold back one direction for ``seconds``; then ``cut`` the connections, or forward the data held back."""
        links = self.open_links
        for link in links:
            link.hold(direction)
        time.sleep(seconds)
        for link in links:
            if cut:
                link.cut()
            link.release(direction)
