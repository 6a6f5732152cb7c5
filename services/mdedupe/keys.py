"""The key by which a duplicate is known."""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from common.json_field import object_of, value_at
from penstock.tracking.correlation import correlation_of

KEY_BYTES: Final = 20
"""Bytes of a key, so that each takes the same memory, however long an id is."""
Reader = Callable[[bytes], bytes]
"""Returns the key of a message."""


def reader(by: str, field: str | None) -> Reader | None:
    """Return what reads the key of a message; None if the server makes it, as the SHA-1 of the message."""
    if by == "id":
        return _key_of_id
    return (lambda message: _key_of_field(message, field)) if field else None


def _key_of_id(message: bytes) -> bytes:
    return _key("id", correlation_of(message).xid)


def _key_of_field(message: bytes, field: str) -> bytes:
    value = value_at(message, object_of(message), field)
    return _key("whole", message) if value is None else _key("field", value)


def _key(kind: str, value: bytes) -> bytes:
    return blake2b(value, digest_size=KEY_BYTES, person=kind.encode()).digest()
