"""One message of a queue or a channel."""

import asyncio
from typing import Protocol

from penstock.base.payload import Received


class Acknowledging(Protocol):
    """What messages came from: a queue or a channel."""

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """Acknowledge all messages up to ``id``."""


class Message(Received):
    """One message: ``body``, as it was pushed, and ``id``."""

    __slots__ = ("_source", "id")

    def __init__(self, body: bytes, id: int, source: Acknowledging) -> None:  # the word for it
        self.body, self.id, self._source = body, id, source

    def __repr__(self) -> str:
        return f"Message({self.id}, {self.body[:100]!r})"

    def ack(self) -> "asyncio.Future[None]":
        """Acknowledge this message and all before it, as ``Queue.ack`` does."""
        return self._source.ack(self.id)
