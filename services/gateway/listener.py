"""The port of the gateway: it lets peers in, and knows which object each of them goes on with."""

import asyncio
import errno
import logging
import re
from collections import Counter
from functools import partial
from http import HTTPStatus
from typing import Final, Self
from urllib.parse import urlsplit

import structlog
from redis.exceptions import ResponseError
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from common.open_files import room_for
from penstock.base.errors import PenstockError, Unavailable
from penstock.base.listening import bound
from penstock.base.log import Seldom
from penstock.bus import Bus
from penstock.bus.federation.frames import HEADER, MAX_FRAME_HEADER, VERSION
from penstock.core.certificates import Certificates
from services.gateway.access import Access
from services.gateway.login import Login, chosen
from services.gateway.pages import page, text
from services.gateway.peer import Peer
from services.gateway.served import Served
from services.gateway.settings import Settings, tls

_log: Final = structlog.get_logger("penstock.gateway")
_url: Final = re.compile(r"(redis|valkey|unix)[a-z+]*://", re.IGNORECASE).search
_silent: Final = logging.getLogger("penstock.gateway.websockets")
"""For websockets, which would log each request that is no websocket's, and with it the query."""
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class CannotListen(PenstockError):
    """The port is taken, or this process may not listen on it."""


class Listener:
    """Accepts websockets from ``__aenter__`` to ``__aexit__``, and gives each a ``Peer`` on ``bus``."""

    def __init__(self, settings: Settings, bus: Bus, counters: Counter[str]) -> None:
        self.settings, self.bus, self.counters = settings, bus, counters
        self.port = settings.listen_port
        self.log = _log.bind(service=settings.service, namespace=settings.redis_namespace)
        self._warn = Seldom(self.log.warning)
        self._login = Login(settings, counters, self.log)
        self._sessions: dict[str, Served] = {}
        self._open = 0
        self._server: Server | None = None

    @property
    def access(self) -> Access:
        """Return what peers may use."""
        return self._login.access

    @access.setter
    def access(self, access: Access) -> None:
        self._login.access = access

    async def __aenter__(self) -> Self:
        """Raise ``CannotListen`` if the port is taken or forbidden."""
        settings = self.settings
        files = [settings.certificate, settings.key] if settings.certificate and settings.key else []
        context = Certificates(partial(tls, *files), *files, log=self.log).port() if files else None
        try:
            self._server = await serve(
                self._serve,
                sock=bound(settings.listen_host, settings.listen_port),
                ssl=context,
                create_connection=_bounded_by(room_for(2 * settings.max_connections)),
                process_request=self._answer,
                process_response=self._announce,
                subprotocols=None,
                select_subprotocol=chosen,
                server_header=None,
                compression=None,
                max_size=settings.max_frame,
                max_queue=16,
                ping_interval=None,
                open_timeout=settings.first_message_timeout,
                close_timeout=5,
                logger=_silent,
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotListen(f"port {settings.listen_port} is taken: set listenPort") from None
            reason = f"cannot listen on {settings.listen_host} port {settings.listen_port}: {error.strerror}"
            raise CannotListen(f"{reason}: set listenHost or listenPort") from None
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        self.log.info("listening", host=settings.listen_host, port=self.port, tls=context is not None)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Accept nothing more, end all websockets, and leave what their peers had."""
        if self._server:
            self._server.close()
            await self._server.wait_closed()

    def drop_all(self) -> None:
        """Cut all websockets, as a failure of the network does."""
        for connection in self._server.connections if self._server else ():
            connection.transport.abort()

    async def take_over(self, session: str, served: Served) -> None:
        """Leave the object that a peer used on a former websocket, so that it goes on with ``served``."""
        former = self._sessions.pop(session, None)
        self._sessions[session], served.session = served, session
        if former is not None and not former.is_closed:
            self.counters["taken_over"] += 1
            await former.peer.leave(former)

    def told(self, error: BaseException, **where: object) -> str:
        """Return what a peer hears of ``error``; what may tell where the servers of the bus are is logged instead.

        That is each error that is none of ours: somebody else's words, such as those of an operating system.
        """
        text = f"{type(error).__name__}: {error}"
        is_ours = isinstance(error, PenstockError | ResponseError | ValueError | TypeError | LookupError)
        if is_ours and not isinstance(error, Unavailable) and not self._names_server(text):
            return text
        named = {name: each for name, each in where.items() if each}
        self._warn("not carried out", type(error).__name__, reason=text, **named)
        return "Unavailable: the servers behind the gateway do not answer"

    def _names_server(self, text: str) -> bool:
        places = {place for each in self.bus.instances for place in (each.address, each.address.rpartition(":")[0])}
        return bool(_url(text)) or any(place and place in text for place in places)

    def forget(self, session: str, served: Served) -> None:
        """Forget a session that has ended."""
        if self._sessions.get(session) is served:
            del self._sessions[session]

    async def _serve(self, connection: ServerConnection) -> None:
        if not await self._login.let_in(connection):
            return
        self._open += 1
        self.counters["connections"] += 1
        try:
            await Peer(self, connection).run()
        except Exception as error:
            self.log.error("websocket ended", exc_info=error)
            raise
        finally:
            self._open -= 1
            self.counters["disconnections"] += 1

    def _announce(self, _: ServerConnection, request: Request, response: Response) -> None:
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            response.headers[HEADER] = str(VERSION)
            response.headers[MAX_FRAME_HEADER] = str(self.settings.max_frame)

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return the response to a request that is no websocket's, or is refused; None lets it in."""
        url, settings = urlsplit(request.path), self.settings
        if "websocket" not in request.headers.get("Upgrade", "").lower():
            return page(url.path, is_online=self.bus.is_online, serves_pages=settings.pages)
        if url.path != settings.path:
            return text(HTTPStatus.NOT_FOUND, f"there is no websocket at {url.path[:200]}")
        if self._open >= settings.max_connections:
            self.counters["refused"] += 1
            return text(HTTPStatus.SERVICE_UNAVAILABLE, "too many websockets")
        if self._login.may_open(connection, request.headers, url.query):
            return None
        return text(HTTPStatus.UNAUTHORIZED, "wrong secret, or none", ("WWW-Authenticate", "Bearer"))


def _bounded_by(most: int) -> type[ServerConnection]:
    """Return connections that end at once if there are more than ``most``, with those that are no websockets yet."""

    made = set[ServerConnection]()

    class Bounded(ServerConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.add(self)
            super().connection_made(transport)
            if len(made) > most:
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            made.discard(self)
            super().connection_lost(exc)

    return Bounded
