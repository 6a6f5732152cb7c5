"""Websockets to another site: each is opened again whenever it ends, and carries the channels of many objects."""

import asyncio
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from penstock.base.errors import Disconnected, Unauthorized
from penstock.base.log import Log
from penstock.bus.federation.frames import CLOSE, DATA, HEADER, ID_BYTES, MAX_FRAME_HEADER
from penstock.bus.federation.liveness import keep_alive
from penstock.bus.federation.writer import Writer
from penstock.core.link import STABLE_SECONDS, Outage, again, describe

if TYPE_CHECKING:
    from penstock.bus.federation.remote import Remote
    from penstock.bus.federation.site import Site

OPEN_SECONDS: Final = 10.0
"""How long a websocket may take to open: Node's server does not answer a wrong path at all."""
PING_SECONDS: Final = 10.0
"""Seconds between two pings, and without an answer to one after which the other end is dead."""
MAX_FRAME: Final = 1 << 29
"""Maximum number of bytes of a frame that is accepted."""
OLD_MAX_FRAME: Final = 16_777_216
"""The same of an other end that does not say it: gateways of 0.2 by default; Node's server has no limit."""
_log: Final = Log("penstock.bus")


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

    def open_channel(self, remote: "Remote") -> None:
        """Give ``remote`` a channel, now or once the websocket is open."""
        remote.channel = secrets.token_hex(ID_BYTES // 2).encode()
        self.remotes[remote.channel] = remote
        if self._writer is not None:
            remote.note_open(self.has_more)

    def close_channel(self, remote: "Remote") -> None:
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
