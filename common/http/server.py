"""A server of guarded connections: from a listening socket to the last answer."""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from common.http.access import Access
from common.http.admission import Admission
from common.http.direct import Handler, direct, nothing
from common.http.guarded import Guarded
from common.http.limits import Limits
from common.http.proxies import Proxies
from common.open_files import room_for
from penstock.base.errors import PenstockError
from penstock.base.listening import bound
from penstock.core.tasks import begin

START_SECONDS: Final = 3.0
"""Seconds that first connections wait until requests are accepted; then they get 503."""
BACKLOG: Final = 2_048
POLL_SECONDS: Final = 0.02
SLOW_SECONDS: Final = 2.0
"""Seconds of draining, longer than those of a connection without a request."""


class CannotListen(PenstockError):
    """The port is taken, or this process may not listen on it."""


def listening_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket that listens; with ``shared`` other processes may listen on the same port.

    A shared one listens only once a server accepts: until then the others get all connections. Raise ``CannotListen``.
    """
    try:
        made = bound(host, port, shared=shared)
        if not shared:
            made.listen(BACKLOG)
        return made
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(f"port {port} is taken: set listenPort") from None
        reason = f"cannot listen on {host} port {port}: {error.strerror}"
        raise CannotListen(f"{reason}: set listenHost or listenPort") from None


class HttpServer:
    """Serves from ``start`` to ``drain``; ``app`` is a function for whole requests, or an ASGI application."""

    def __init__(
        self,
        limits: Limits,
        *,
        handler: Handler | None = None,
        app: Callable[..., object] = nothing,
        proxies: Proxies | None = None,
        access: Access | None = None,
    ) -> None:
        self.admission = Admission(limits, proxies or Proxies(()), access)
        self._config = Config(
            app, http=Guarded, lifespan="off", ws="none", log_config=None, access_log=False, proxy_headers=False,
            date_header=True, server_header=False, timeout_keep_alive=int(limits.idle_seconds) + 1,
        )  # fmt: skip
        self._state = ServerState()
        self._make = direct(handler) if handler else Guarded
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Accept connections from ``listening``, which stays open when this server ends."""
        self.admission.most = room_for(self.admission.limits.connections)
        self._config.load()
        loop = asyncio.get_running_loop()
        make, admission = self._make, self.admission
        self._watch = begin(admission.watch())
        self._server = await loop.create_server(
            lambda: make(self._config, self._state, admission), sock=listening.dup(), backlog=BACKLOG
        )

    async def start_when(self, accepts: Callable[[], bool], listening: socket.socket) -> None:
        """``start`` once requests are accepted, since connections can wait; but not for long: Redis may be away."""
        until = asyncio.get_running_loop().time() + START_SECONDS
        while not accepts() and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_SECONDS)
        await self.start(listening)

    async def drain(
        self, seconds: float, closing: socket.socket | None = None, slow: Callable[[int], object] = lambda _: None
    ) -> int:
        """Accept nothing more, answer what is in hand, and cut what is left after ``seconds``; return how many.

        Without ``closing``, which is the socket of ``start``, new connections wait in it for the next server. If it
        takes longer than ``SLOW_SECONDS``, call ``slow`` with the number of connections that have a request in hand.
        """
        if self._server is None:
            return 0
        if closing:
            closing.listen(0)  # others that share the port get new connections
        for _ in range(3):
            await asyncio.sleep(0)  # accept those whose connection is made already
        self._server.close()
        if closing:
            closing.close()
        self.admission.draining = True
        for connection in list(self.admission.open):
            connection.shutdown()
        await self._wait_until_empty(min(SLOW_SECONDS, seconds))
        if self.admission.open and seconds > SLOW_SECONDS:
            slow(len(self.admission.open))
            await self._wait_until_empty(seconds - SLOW_SECONDS)
        left = list(self.admission.open)
        for connection in left:
            connection.abort()
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await asyncio.sleep(0)
        return len(left)

    async def _wait_until_empty(self, seconds: float) -> None:
        """Wait until no connection is open, for ``seconds`` at most."""
        until = asyncio.get_running_loop().time() + seconds
        while self.admission.open and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_SECONDS)
