"""Numbers that others have written: ids and times to live, as ``penstock/core/lua/parts/numbers.lua`` reads them."""

from typing import Final

from penstock.base.errors import WrongCall

MAX_ID: Final = 2**53 - 1
"""Largest id of a message: Lua counts no further."""
MAX_TTL: Final = 10**9
"""Longest ttl (s) of a queue."""
MAX_DIGITS: Final = 16


def is_whole(value: object, least: int, most: int = MAX_ID) -> bool:
    """Return whether ``value`` is a whole number from ``least`` to ``most``, such as 5 or 5.0."""
    return isinstance(value, int | float) and least <= value <= most and value == int(value)


def check_attaching(ttl: object, maxsize: object) -> None:
    """Raise ``WrongCall`` for what is no ttl (s) or maxsize of a queue."""
    if not (is_whole(ttl, 1, MAX_TTL) and is_whole(maxsize, 0)):
        raise WrongCall(f"ttl={ttl!r}, maxsize={maxsize!r}: expected whole seconds from 1 to 10^9, and at least 0")


def check_id(id_: object) -> None:
    """Raise ``WrongCall`` for what is no id of a message."""
    if type(id_) is not int:
        raise WrongCall(f"ack: expected the id of a message, found {id_!r}")


def check_field(field: object) -> None:
    """Raise ``WrongCall`` for what is no name of a field of the metadata."""
    if not isinstance(field, str):
        raise WrongCall(f"metadata: expected the name of a field as text, found {field!r}")


def whole(word: bytes, most: int = MAX_ID) -> int | None:
    """Return ``word`` as a number; None unless it is decimal digits only, at most ``most``."""
    number = int(word) if len(word) <= MAX_DIGITS and word.isdigit() else None
    return None if number is None or number > most else number
