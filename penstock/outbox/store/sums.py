"""Checksums of what a store keeps: each row of a message and each mark has one, verified when the row is read.

Those of ``meta`` are verified when the store is opened. A row that version 1 has written has none, in a store that was
converted. What is of another type than was written does not verify either.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from zlib import crc32

from penstock.outbox.store.rows import SEPARATOR

_MASK: Final = 0xFFFFFFFF
_UNTIL: Final = struct.Struct("<d")


def of_message(seq: int, id: bytes, keys: str, data: bytes) -> int:
    return crc32(data, crc32(id + keys.encode(), seq & _MASK))


def of_arrived(seq: int, id: bytes, sender: str, keys: str, data: bytes) -> int:
    return crc32(data, crc32(id + f"{sender}{SEPARATOR}{keys}".encode(), seq & _MASK))


def of_letter(id: bytes, address: str, outgoing: int, keys: str | bytes, data: bytes, attempts: int, error: str) -> int:
    parts = (address, outgoing, keys if isinstance(keys, bytes) else keys.encode(), attempts, error)
    return crc32(data, crc32(id + repr(parts).encode()))


def of_spooled(list: int, number: int, data: bytes) -> int:
    return crc32(data, crc32(number.to_bytes(8, "little"), list & _MASK))


def of_meta(name: str, value: object) -> int:
    return crc32(repr((name, value)).encode())


def of_until(until: float) -> int:
    """Return the checksum with which those of marks that end then begin."""
    return crc32(_UNTIL.pack(until))


def of_mark(id: bytes, until: float) -> int:
    return crc32(id, of_until(until))


COLUMNS: Final[dict[str, tuple[str, Callable[..., int]]]] = {
    "meta": ("name, value", of_meta),
    "messages": ("seq, id, keys, data", of_message),
    "incoming": ("seq, id, sender, keys, data", of_arrived),
    "dead": ("id, address, outgoing, keys, data, attempts, error", of_letter),
    "spooled": ("list, number, data", of_spooled),
    "seen": ("id, until", of_mark),
}
"""Of each table the columns that a checksum is about, and the checksum."""


def verifies(sum: int | None, of: Callable[..., int], values: Iterable[Any], *, unsummed: bool) -> bool:
    """Return whether ``sum`` is that of ``values``; None is if rows may have none."""
    if sum is None:
        return unsummed
    try:
        return of(*values) == sum
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error):
        return False


def summed(of: Callable[..., int], rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return ``rows`` with the checksum of each behind it."""
    return [(*row, of(*row)) for row in rows]
