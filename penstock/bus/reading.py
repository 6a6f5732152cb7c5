"""Read messages of a queue, which stay: from a place on, or from behind an id."""

from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import Gone
from penstock.bus.message import Message
from penstock.bus.mode import Mode
from penstock.bus.numbers import whole
from penstock.bus.scripts import READ
from penstock.core.wire import Reply

if TYPE_CHECKING:
    from penstock.bus.consumption import Consumption

MAX_COMPARED: Final = 1 << 12
"""Largest message (bytes) that is compared with the one that was read each time, and not only if ids are in doubt."""


class Reading:
    """What brings messages to a consumption that removes none."""

    def __init__(self, consumption: "Consumption", mode: Mode) -> None:
        self._ahead, self._queue, self._size = consumption.ahead, consumption.queue, mode.prefetch_bytes
        self._index = mode.start
        """The place of the next message."""
        self._last, self._last_body, self._doubts = mode.after_id, b"", False
        """The message before ``_index``, and whether it may be another one by now."""

    async def begin(self) -> None:
        """Do nothing."""

    def packed(self, most: int) -> None:
        """Return None: what is read is not sent ahead."""

    async def take(self, most: int, sent: Reply | None) -> list[Any]:
        """Read the next messages."""
        self._index, *found = await self._read(most)
        if words := [word for each in found[1:] for word in each]:
            self._index += len(words) // 2
            self._last, self._last_body = whole(words[-2]) or 0, words[-1]
        return found

    async def give_back(self, left: list[Message]) -> None:
        """Forget ``left``, which the queue still has."""
        left.clear()

    def note_doubt(self) -> None:
        """Note that ids may have begun anew: what was read last is compared before more is read."""
        self._doubts = True

    def note_restart(self) -> None:
        """Read from the beginning."""
        self._index = self._last = 0
        self._last_body = b""

    async def _read(self, most: int) -> list[Any]:
        metadata, messages, msgid, _ = self._queue.keys
        named: dict[str, Any] = {"metadata": metadata, "messages": messages, "msgid": msgid}
        named |= {"index": self._index, "last": self._last, "most": most, "bytes": self._size}
        compares = self._ahead.taken_id > 0 and (self._doubts or len(self._last_body) <= MAX_COMPARED)
        self._doubts = False
        named["digest"] = sha1(self._last_body, usedforsecurity=False).hexdigest() if compares else ""
        try:
            found: list[Any] = await self._queue.call(READ, **named)
        except Gone:  # the bus finds out why when it keeps the queue alive
            return [self._index, 0]
        return found
