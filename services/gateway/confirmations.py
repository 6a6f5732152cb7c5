"""Confirm messages for peers that confirm none themselves: they have what was sent before a ping that they answer."""

import asyncio
from collections.abc import Callable

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from penstock.core.tasks import begin
from services.gateway.window import Window


class Confirmations:
    """The windows of one websocket that wait for a pong. ``wake`` has ``ping`` called once all is written."""

    def __init__(self, connection: ServerConnection, wake: Callable[[], None]) -> None:
        self._connection, self._wake = connection, wake
        self._windows = set[Window]()
        self._confirming: asyncio.Task[None] | None = None

    def add(self, window: Window) -> None:
        """Confirm the messages of ``window`` once the peer has them."""
        self._windows.add(window)
        self._wake()

    def ping(self) -> None:
        """Ping, unless no window waits or a pong is awaited, and confirm what was sent before."""
        if self._windows and self._confirming is None:
            marks = [(window, window.sent) for window in self._windows]
            self._windows.clear()
            self._confirming = begin(self._confirm(marks))

    def end(self) -> None:
        """Wait for no pong any more."""
        if self._confirming:
            self._confirming.cancel()

    async def _confirm(self, marks: list[tuple[Window, int]]) -> None:
        try:
            await (await self._connection.ping())
        except ConnectionClosed:
            return
        for window, sent in marks:
            window.confirm_up_to(sent)
        self._confirming = None
        self._wake()
