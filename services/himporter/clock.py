"""The clock of the server, estimated from replies to TIME."""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from penstock.core.raw_connection import Command
from penstock.core.wire import Reply

SECONDS: Final = 5.0
"""Seconds after which the clock is read again: either may be set, and ours stands still while a machine sleeps."""


class Clock:
    """The server's time minus the loop's (s): ``offset``, which is 0 before it is known."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.offset = 0.0
        self._read_at = -inf

    @property
    def now(self) -> float:
        """Return the server's time (s since the epoch)."""
        return self._loop.time() + self.offset

    def set(self, time: Sequence[bytes]) -> None:
        """Set the clock by a reply to TIME."""
        self._read_at = self._loop.time()
        self.offset = int(time[0]) + int(time[1]) / 1e6 - self._read_at

    def read(self, send: Callable[[Command, Reply], None]) -> None:
        """Read the server's clock with ``send``, if it was not read for ``SECONDS``."""
        if self._loop.time() - self._read_at >= SECONDS:
            self._read_at = self._loop.time()
            send(("TIME",), Reply(self._replied))

    def _replied(self, reply: Reply) -> None:
        if not reply.error:
            self.set(reply.value())
