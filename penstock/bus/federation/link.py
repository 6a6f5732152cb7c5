"""Websockets to another site: each is opened again whenever it ends, and carries the channels of many objects."""

import asyncio
import secrets
import time
from http import HTTPStatus
from math import inf
from typing import TYPE_CHECKING, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from penstock.base.errors import Unauthorized
from penstock.base.log import Log
from penstock.bus.federation.frames import CLOSE, DATA, HEADER, ID_BYTES, MAX_FRAME_HEADER
from penstock.bus.federation.liveness import keep_alive
from penstock.bus.federation.writer import Writer
from penstock.core.backoff import Backoff

if TYPE_CHECKING:
    from penstock.bus.federation.remote import Remote
    from penstock.bus.federation.site import Site

OPEN_SECONDS: Final = 10.0
"""How long a websocket may take to open: Node's server does not answer a wrong path at all."""
PING_SECONDS: Final = 10.0
"""Seconds between two pings, and without an answer to one after which the other end is dead."""
STABLE_SECONDS: Final = 5.0
"""A websocket that ends sooner is opened again ever later."""
MAX_AFTER_OPEN: Final = 5
"""Maximum number of failures that are counted once a websocket was opened: the other end is there."""
BACKOFF: Final = Backoff((), 0.04, 10.0)
"""How long to wait before a websocket is opened again."""
MAX_FRAME: Final = 1 << 29
"""Maximum number of bytes of a frame that is accepted."""
OLD_MAX_FRAME: Final = 16_777_216
"""The same of an other end that does not say it: gateways of 0.2 by default; Node's server has no limit."""
_log: Final = Log("penstock.bus")


class Link:
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
        self._is_lost = False
        self._opened_at = inf

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
        failures = 0
        while True:
            self._opened_at = inf
            try:
                reason = await self._use()
            except InvalidStatus as error:
                if error.response.status_code == HTTPStatus.UNAUTHORIZED:
                    self._site.refuse(Unauthorized(f"{self._site.url} refuses the secret"))
                    return
                reason = f"HTTP status {error.response.status_code}"
            except (OSError, WebSocketException) as error:
                reason = str(error) or type(error).__name__
            self._lost(reason)
            lived = time.monotonic() - self._opened_at
            if lived > STABLE_SECONDS:
                failures = 1
            else:
                failures = min(failures + 1, MAX_AFTER_OPEN) if lived >= 0 else failures + 1
            await asyncio.sleep(BACKOFF.delay_after(failures))

    async def _use(self) -> str:
        """Open the websocket and use it until it ends; return why."""
        site = self._site
        async with connect(site.address, **site.options) as connection:
            self._opened_at = time.monotonic()
            headers = connection.response.headers if connection.response else {}
            self.has_more = HEADER in headers
            said = headers.get(MAX_FRAME_HEADER, "")
            self.max_frame = int(said) if said.isascii() and said.isdigit() else OLD_MAX_FRAME
            writer = self._writer = Writer(lambda: None, lambda: None, self.max_frame)
            tasks = [
                asyncio.create_task(writer.run(connection)),
                asyncio.create_task(keep_alive(connection, PING_SECONDS, PING_SECONDS, lambda: True)),
            ]
            try:
                if self._is_lost:
                    self._is_lost = False
                    _log.info("site is back", url=site.url)
                for remote in [*self.remotes.values()]:
                    remote.note_open(self.has_more)
                return await self._read(connection)
            finally:
                self._writer = None
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, connection: ClientConnection) -> str:
        try:
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
        except ConnectionClosed as error:
            return str(error)

    def _lost(self, reason: str) -> None:
        if self.remotes and not self._is_lost:
            _log.warning("site lost", url=self._site.url, reason=reason)
        self._is_lost = True
        for remote in [*self.remotes.values()]:
            remote.note_lost(reason)
