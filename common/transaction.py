"""What goes over a wire in one piece, and what comes of a wait."""

from dataclasses import dataclass
from typing import Final, NamedTuple

REFUSED: Final = object()
"""The outcome of a script that a full server has refused."""


@dataclass(frozen=True)
class Transaction:
    """What the server does at one instant, as bytes, and how many replies it brings."""

    packed: bytes
    replies: int
    multi: bool
    """Whether the replies to the commands are those of an EXEC."""


class Taken(NamedTuple):
    """How a wait ended: whether there is something to do, and the message that came, if it is known."""

    anything: bool
    message: bytes | None = None
