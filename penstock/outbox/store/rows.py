"""Rows of an outbox's store."""

from collections.abc import Sequence
from typing import Final, NamedTuple

SEPARATOR: Final = "\n"
"""Between the keys of a message; so no key may have it."""
TO_LIST: Final = 2
"""``outgoing`` of a dead letter for a list of a Redis server: ``address`` and ``keys`` name its spool."""

TROUBLE: Final = "trouble:"
"""In ``meta``, before an address or the name of a spool: why messages wait for it."""


PINNED: Final = "store of:"
"""In ``meta``, before an address: the identity of the store that first subscribed with it."""


class Outgoing(NamedTuple):
    """A message for one destination."""

    seq: int
    id: bytes
    keys: str
    """The keys that the destination has subscribed to, with ``SEPARATOR`` between them."""
    data: bytes


class Copy(NamedTuple):
    """What a message is to one destination. ``keys`` is None for all keys of the message."""

    destination: int
    keys: str | None


class Published(NamedTuple):
    """A message to be stored for ``copies``."""

    seq: int
    id: bytes
    keys: str
    data: bytes
    copies: Sequence[Copy]


class Arrived(NamedTuple):
    """A message that has come. ``seq`` is ours."""

    seq: int
    id: bytes
    sender: str
    keys: str
    data: bytes


class Waiting(NamedTuple):
    """An incoming message; ``attempts`` have begun before, the last of which failed with ``error``."""

    seq: int
    id: bytes
    sender: str
    keys: str
    data: bytes
    attempts: int
    suspect: bool
    """The process ended while handlers of it, or of those begun with it, ran."""
    error: str


class Failed(NamedTuple):
    """An attempt that has failed. ``due`` None: it was the last, and the message becomes a dead letter."""

    seq: int
    attempts: int
    due: float | None
    error: str


class Dead(NamedTuple):
    """A dead letter. ``outgoing``: ``address`` would not take it; else ``address`` sent it, and its handlers failed."""

    number: int
    id: bytes
    address: str
    outgoing: bool
    keys: str
    data: bytes
    attempts: int
    error: str
    at: float
    """Seconds since the epoch, by the system's clock."""


class Counts(NamedTuple):
    """What is stored."""

    keys: int
    subscribers: int
    incoming: int
    outgoing: int
    """Copies: a message for three destinations counts three."""
    dead: int
