"""Numbers that others have written: ids and times to live, as ``penstock/lua/parts/numbers.lua`` reads them."""

from typing import Final

MAX_ID: Final = 2**53 - 1
"""Largest id of a message: Lua counts no further."""
MAX_TTL: Final = 10**9
"""Longest ttl (s) of a queue."""
MAX_DIGITS: Final = 16


def is_whole(value: object, least: int, most: int = MAX_ID) -> bool:
    """Return whether ``value`` is a whole number from ``least`` to ``most``, such as 5 or 5.0."""
    return isinstance(value, int | float) and least <= value <= most and value == int(value)


def whole(word: bytes, most: int = MAX_ID) -> int | None:
    """Return ``word`` as a number; None unless it is decimal digits only, at most ``most``."""
    number = int(word) if len(word) <= MAX_DIGITS and word.isdigit() else None
    return None if number is None or number > most else number
