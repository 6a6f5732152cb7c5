"""A transaction that goes over a connection in one piece, and the outcome of a wait."""

from dataclasses import dataclass
from typing import Final, NamedTuple

REFUSED: Final = object()
"""The outcome of a script that a full server refused."""


@dataclass(frozen=True)
class Transaction:
    """Commands that the server executes at one instant, as bytes, and how many replies they bring."""

    packed: bytes
    replies: int
    multi: bool
    """Whether the replies to the commands come as one reply, that of EXEC."""


class Taken(NamedTuple):
    """The outcome of a wait: whether there is something to do, and the message that came, or None if unknown."""

    anything: bool
    message: bytes | None = None
