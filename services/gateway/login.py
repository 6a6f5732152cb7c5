"""Whether a peer is let in: its secret is in a header, in the query, or in the first frame."""

import asyncio
import json
from collections import Counter
from typing import Any, Final
from urllib.parse import unquote

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from penstock.base.log import Seldom
from penstock.bus.federation.frames import SUBPROTOCOL, VERSION
from services.gateway.access import Access
from services.gateway.settings import Settings

WRONG_SECRET: Final = 4401
"""The code with which a websocket ends whose first frame has a wrong secret, or none in time."""
MAX_SECRET_FRAME: Final = 10_000
_LET_IN: Final = "peer"


class Login:
    """Checks the secrets of peers, and counts and logs wrong ones."""

    def __init__(self, settings: Settings, counters: Counter[str], log: Any) -> None:
        self.access = Access(settings)
        self._settings, self._counters, self._warn = settings, counters, Seldom(log.warning)

    def may_open(self, connection: ServerConnection, headers: Headers, query: str) -> bool:
        """Return False for a request with a wrong secret, or none; ``let_in`` waits for one in the first frame."""
        given = self._given(headers, query)
        if given is None and SUBPROTOCOL in _offered(headers):
            return True
        if given is not None and self._knows(given):
            connection.username = _LET_IN
            return True
        self._note_wrong(connection)
        return False

    async def let_in(self, connection: ServerConnection) -> bool:
        """Wait for a secret in the first frame, unless the request had it; return whether it is right."""
        if getattr(connection, "username", None) == _LET_IN:
            return True
        try:
            async with asyncio.timeout(self._settings.first_message_timeout):
                frame = await connection.recv(decode=False)
            message = json.loads(frame) if len(frame) <= MAX_SECRET_FRAME else None
            secret = message.get("secret") if isinstance(message, dict) else None
            if isinstance(secret, str) and self._knows(secret):
                await connection.send(json.dumps({"ok": True, "version": VERSION}))
                return True
        except (TimeoutError, ValueError, RecursionError):
            pass
        except ConnectionClosed:
            return False
        self._note_wrong(connection)
        await connection.close(WRONG_SECRET, "wrong secret, or none")
        return False

    def _knows(self, secret: str) -> bool:
        place = self.access.place_of(secret)
        if place:
            self._counters["former_secret"] += 1
        return place is not None

    def _given(self, headers: Headers, query: str) -> str | None:
        """Return the secret of a request; None without one, and an empty one if it is where it is not accepted."""
        found = headers.get("Authorization", "")
        if found[:7].lower() == "bearer ":
            return found[7:].strip()
        for field in query.split("&"):
            name, _, value = field.partition("=")
            if name == "secret":
                return unquote(value) if self._settings.accept_query_secret else ""
        return "" if found else None

    def _note_wrong(self, connection: ServerConnection) -> None:
        self._counters["unauthorized"] += 1
        address = connection.remote_address
        self._warn("wrong secret", peer=address[0] if address else None)


def chosen(_: ServerConnection, offered: object) -> "Subprotocol | None":
    """Return the subprotocol of a peer that gives its secret in the first frame."""
    return SUBPROTOCOL if isinstance(offered, list | tuple) and SUBPROTOCOL in offered else None


def _offered(headers: Headers) -> list[str]:
    return [each.strip() for value in headers.get_all("Sec-WebSocket-Protocol") for each in value.split(",")]
