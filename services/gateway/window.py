"""Messages of one object that were sent to a peer and not confirmed: how many there may be, and which they are."""

import asyncio
from collections import deque

from penstock.bus import Message


class Window:
    """At most ``most`` messages, and ``size`` bytes unless one message has more."""

    def __init__(self, most: int, size: int) -> None:
        self._most, self._size = most, size
        self._unconfirmed: deque[Message] = deque()
        self._bytes = 0
        self.sent = 0
        """How many messages were ever added."""
        self._room = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Return whether no message may be sent."""
        return len(self._unconfirmed) >= self._most or self._bytes >= self._size

    @property
    def unconfirmed(self) -> list[Message]:
        """Return the messages that were not confirmed, oldest first."""
        return [*self._unconfirmed]

    def add(self, message: Message) -> None:
        """Add a message that is about to be sent."""
        self._unconfirmed.append(message)
        self._bytes += len(message.body)
        self.sent += 1

    def confirm(self, many: int) -> None:
        """Remove the oldest messages; no more than there are."""
        for _ in range(min(many, len(self._unconfirmed))):
            self._bytes -= len(self._unconfirmed.popleft().body)
        self._room.set()

    def confirm_up_to(self, sent: int) -> None:
        """Remove all messages that were added when ``sent`` was the number of them."""
        self.confirm(len(self._unconfirmed) - (self.sent - sent))

    async def room(self) -> None:
        """Wait until a message may be sent."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()
