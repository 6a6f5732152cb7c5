"""One message of a queue or a channel."""

import asyncio
from typing import Any, Final, Protocol

from penstock.base.encoding import decoded, encoded
from penstock.base.payload import Received
from penstock.core.objects import Kind


class Acknowledging(Protocol):
    """What messages came from: a queue or a channel."""

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """Acknowledge all messages up to ``id``."""


class Peeked(Received):
    """One message that waits: ``body``, as it was pushed, and ``id``."""

    __slots__ = ("id",)

    def __init__(self, body: bytes, id: int) -> None:  # the word for it
        self.body, self.id = body, id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, {self.body[:100]!r})"


class Message(Peeked):
    """One message that was handed out: ``body``, as it was pushed, and ``id``."""

    __slots__ = ("_source",)

    def __init__(self, body: bytes, id: int, source: Acknowledging) -> None:  # the word for it
        self.body, self.id, self._source = body, id, source

    def ack(self) -> "asyncio.Future[None]":
        """Acknowledge this message and all before it, as ``Queue.ack`` does."""
        return self._source.ack(self.id)


def _pairs(messages: list[Peeked]) -> list[list[Any]]:
    return [[decoded(each.body), each.id] for each in messages]


def _peeked(pairs: Any) -> list[Peeked]:
    return [Peeked(encoded(str(text)), int(id_)) for text, id_ in pairs]


PEEKED: Final = Kind("a list of texts and ids", _pairs, _peeked)
"""Messages as they go over the wire."""
