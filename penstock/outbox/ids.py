"""Ids of messages: UUIDs of version 7 (RFC 9562), whose first 48 bits are the time of the publisher's clock."""

import os
import time
import uuid
from collections.abc import Iterator
from typing import Final

SIZE: Final = 16
_TAIL: Final = 10
"""Bytes after the time: the version, the variant, and 74 random bits."""
_AHEAD: Final = 256
_KEPT: Final = int.from_bytes(b"\x0f\xff\x3f".ljust(_TAIL, b"\xff") * _AHEAD)
_SET: Final = int.from_bytes(b"\x70\x00\x80".ljust(_TAIL, b"\x00") * _AHEAD)
_tails = list[bytes]()
"""For ids to come: to ask the system for the random bits of one takes longer than all the rest."""
os.register_at_fork(after_in_child=_tails.clear)


def new_id() -> bytes:
    """Return a new id. Nothing depends on its time: it may be wrong, and ids of one process may not rise."""
    while True:
        try:
            return (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF).to_bytes(6) + _tails.pop()
        except IndexError:
            _tails.extend(_new_tails())


def _new_tails() -> Iterator[bytes]:
    drawn = (int.from_bytes(os.urandom(_TAIL * _AHEAD)) & _KEPT | _SET).to_bytes(_TAIL * _AHEAD)
    return (drawn[at : at + _TAIL] for at in range(0, len(drawn), _TAIL))


def as_text(id: bytes) -> str:
    """Return ``id`` as it is written: 01890a5d-ac96-774b-bcce-b302099a8057."""
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def as_id(text: str) -> bytes:
    """Return the id that is written as ``text``. Raise ``ValueError`` if it is none."""
    return uuid.UUID(text).bytes


def sent_at(id: bytes) -> float:
    """Return when a message was published (s since the epoch), by the publisher's clock."""
    return int.from_bytes(id[:6]) / 1000
