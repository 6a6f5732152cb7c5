"""Another site: websockets that are opened again whenever they end, and that objects of its bus share."""

import asyncio
import secrets
import ssl
from http import HTTPStatus
from typing import Any, Final, Protocol, Required, TypedDict
from urllib.parse import quote, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from penstock.base.errors import Disconnected, Unauthorized, WrongCall
from penstock.base.log import Log
from penstock.bus.federation.frames import CLOSE, DATA, HEADER, ID_BYTES, MAX_FRAME_HEADER
from penstock.bus.federation.websocket import Writer, keep_alive
from penstock.core.certificates import Certificates, authorities
from penstock.core.link import STABLE_SECONDS, Outage, again, describe
from penstock.core.tasks import Tasks

OPEN_SECONDS: Final = 10.0
"""How long a websocket may take to open: Node's server does not answer a wrong path at all."""
PING_SECONDS: Final = 10.0
"""Seconds between two pings, and without an answer to one after which the other end is dead."""
MAX_FRAME: Final = 1 << 29
"""Maximum number of bytes of a frame that is accepted."""
OLD_MAX_FRAME: Final = 16_777_216
"""The same of an other end that does not say it: gateways of 0.2 by default; Node's server has no limit."""
_log: Final = Log("penstock.bus")
_SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class Remote(Protocol):
    """An object of the site, whose calls go over a channel."""

    channel: bytes

    def note_open(self, has_more: bool) -> None:
        """Note that the websocket is open; ``has_more`` if the other end is a gateway of Penstock."""

    def received(self, data: bytes) -> None:
        """Take what came on the channel."""

    def note_lost(self, reason: str) -> None:
        """Note that the websocket has ended."""

    def note_closed_channel(self) -> None:
        """Note that the other end has closed the channel."""

    def note_refused(self, error: Unauthorized) -> None:
        """Note that the other end refuses the secret."""


class Socket:
    """One websocket to a site."""

    def __init__(self, site: "Site") -> None:
        self._site = site
        self.remotes: dict[bytes, Remote] = {}
        """The object of each channel."""
        self.has_more = False
        """Whether the other end is a gateway of Penstock."""
        self.max_frame = OLD_MAX_FRAME
        """Maximum number of bytes of a frame, and of a call, that the other end takes."""
        self._writer: Writer | None = None
        self._outage = Outage(_log, "site away", "site back", url=site.url)

    def open_channel(self, remote: Remote) -> None:
        """Give ``remote`` a channel, now or once the websocket is open."""
        remote.channel = secrets.token_hex(ID_BYTES // 2).encode()
        self.remotes[remote.channel] = remote
        if self._writer is not None:
            remote.note_open(self.has_more)

    def close_channel(self, remote: Remote) -> None:
        """End the channel of ``remote``."""
        if self.remotes.pop(remote.channel, None) is not None and self._writer is not None:
            self._writer.send_alone(remote.channel, CLOSE)

    def send(self, channel: bytes, line: bytes) -> None:
        """Send a line with those of the same turn of the loop; nothing while the websocket is away."""
        if self._writer is not None:
            self._writer.send(channel, line)

    def send_alone(self, channel: bytes, data: bytes) -> None:
        """Send data in a frame by itself."""
        if self._writer is not None:
            self._writer.send_alone(channel, DATA, data)

    async def keep(self) -> None:
        """Keep the websocket open; end if the other end refuses the secret."""
        try:
            await again(self._life, self._outage, lasts=_is_refused, mend=self._lost, ends_outage=False)
        except Unauthorized as error:
            self._site.refuse(error)

    async def _life(self) -> None:
        """Open the websocket and use it until it ends; raise why."""
        try:
            await self._use()
        except InvalidStatus as error:
            if error.response.status_code == HTTPStatus.UNAUTHORIZED:
                raise Unauthorized(f"{self._site.url} refuses the secret") from error
            raise Disconnected(f"HTTP status {error.response.status_code}") from error
        except WebSocketException as error:
            raise Disconnected(str(error) or type(error).__name__) from error

    async def _use(self) -> None:
        async with connect(self._site.address, ssl=self._site.tls, **self._site.options) as connection:
            headers = connection.response.headers if connection.response else {}
            self.has_more = HEADER in headers
            said = headers.get(MAX_FRAME_HEADER, "")
            self.max_frame = int(said) if said.isascii() and said.isdigit() else OLD_MAX_FRAME
            writer = self._writer = Writer(lambda: None, lambda: None, self.max_frame)
            tasks = [
                asyncio.create_task(writer.run(connection)),
                asyncio.create_task(keep_alive(connection, PING_SECONDS, PING_SECONDS, lambda: True)),
            ]
            stable = asyncio.get_running_loop().call_later(STABLE_SECONDS, self._outage.over)
            try:
                for remote in [*self.remotes.values()]:
                    remote.note_open(self.has_more)
                await self._read(connection)
            finally:
                self._writer = None
                stable.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, connection: ClientConnection) -> None:
        """Hand out what comes. Raise ``ConnectionClosed`` at the end."""
        while True:
            frame = await connection.recv(decode=False)
            remote = self.remotes.get(frame[:ID_BYTES])
            if remote is None:
                continue
            if frame[ID_BYTES : ID_BYTES + 1] == CLOSE:
                del self.remotes[remote.channel]
                remote.note_closed_channel()
            else:
                remote.received(frame[ID_BYTES + 1 :])

    async def _lost(self, error: Exception, _: bool) -> None:
        for remote in [*self.remotes.values()]:
            remote.note_lost(describe(error))


def _is_refused(error: Exception) -> bool:
    return isinstance(error, Unauthorized)


class SiteOptions(TypedDict, total=False):
    """How ``Bus.federate`` reaches another site."""

    secret: Required[str]
    secret_in_query: bool | None
    sockets: int | None
    tls: ssl.SSLContext | None


def check_options(options: SiteOptions) -> None:
    """Raise ``WrongCall`` for an option that does not exist, and without a ``secret``."""
    if unknown := options.keys() - SiteOptions.__annotations__.keys():
        known = ", ".join(SiteOptions.__annotations__)
        raise WrongCall(f"federate has no option {', '.join(sorted(unknown))}: expected some of {known}")
    if not isinstance(options.get("secret"), str):
        raise WrongCall("expected the secret of the other site as text (`secret=`)")


class Site:
    """Another site, by the URL of its gateway, with ``sockets`` websockets that its objects share."""

    def __init__(self, url: str, options: SiteOptions) -> None:
        secret, in_query, tls = options["secret"], bool(options.get("secret_in_query")), options.get("tls")
        sockets = 1 if (given := options.get("sockets")) is None else given
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.netloc:
            raise WrongCall(f"expected the URL of a gateway such as wss://host/bus, found {url!r}")
        if sockets < 1:
            raise WrongCall(f"sockets={sockets}: expected at least 1")
        self._given: dict[str, Any] = {"secret_in_query": in_query, "sockets": sockets, "tls": tls}
        self.url = url
        scheme = _SCHEMES[parts.scheme]
        query = f"secret={quote(secret, safe='')}" if in_query else parts.query
        self.address = urlunsplit((scheme, parts.netloc, parts.path or "/", query, ""))
        self.options: dict[str, Any] = {
            "max_size": MAX_FRAME,
            "max_queue": 64,
            "open_timeout": OPEN_SECONDS,
            "close_timeout": 2,
            "ping_interval": None,
            "compression": None,
            "user_agent_header": None,
            "additional_headers": {} if in_query else {"Authorization": f"Bearer {secret}"},
        }
        self._tls = (tls or authorities(None, _log)) if scheme == "wss" else None
        self.refused: Unauthorized | None = None
        self._links = [Socket(self) for _ in range(sockets)]
        self._tasks = Tasks()

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Return the context of the next websocket; None if it is not encrypted."""
        return self._tls.latest() if isinstance(self._tls, Certificates) else self._tls

    def check_same(self, options: SiteOptions) -> None:
        """Raise ``WrongCall`` for an option that differs: the websockets are open already."""
        for name, value in self._given.items():
            if (given := options.get(name)) is not None and given != value:
                raise WrongCall(f"{name} differs from the first `federate` for {self.url}: pass the same, or none")

    def start(self) -> None:
        """Open the websockets."""
        for link in self._links:
            self._tasks.begin(link.keep())

    async def close(self) -> None:
        """Close the websockets."""
        await self._tasks.cancel()

    @property
    def link(self) -> Socket:
        """Return the websocket that has the fewest channels."""
        return min(self._links, key=lambda each: len(each.remotes))

    def refuse(self, error: Unauthorized) -> None:
        """Tell all objects that the other site refuses the secret."""
        self.refused = error
        for remote in [remote for link in self._links for remote in link.remotes.values()]:
            remote.note_refused(error)
