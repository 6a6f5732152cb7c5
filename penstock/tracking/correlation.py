"""Correlation ids (xids): identify a message by its content."""

import re
from hashlib import sha1
from math import isfinite
from typing import Any, Final, NamedTuple

from penstock.base.encoding import decoded
from penstock.base.exact_json import (
    NUMBER,
    Number,
    canonical,
    canonical_number,
    exactly,
    parse,
    parse_slowly,
    quoted,
)

MAX_XID_BYTES: Final = 512
"""Of a longer one the SHA-1 is the xid."""
OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
"""The beginning of a JSON object, perhaps behind a byte order mark."""
MAX_PLAIN_ZEROS: Final = 4_096
"""A whole number that ends in more zeros has an exponent as an xid."""
BEGINS_LIKE_A_NUMBER: Final = frozenset('-0123456789"')


class Correlation(NamedTuple):
    """The xid of a message, its origin, and the message's ``meta`` or ``{}``.

    Origins: ``number``, ``meta``, ``metaNumber`` (its ``meta.id`` is no text, and so it is in answers), ``metaLong``
    (its ``meta.id`` has more than 512 bytes, and the xid is the SHA-1 of it) or ``sha1``.
    """

    xid: bytes
    kind: str
    meta: dict[str, Any]


def correlation_of(message: bytes) -> Correlation:
    """Return the correlation id of ``message``: the number that it is, its ``meta.id``, or its SHA-1."""
    if message.isdigit():
        return Correlation(xid_of_digits(message), "number" if len(message) <= MAX_XID_BYTES else "sha1", {})
    try:
        id, meta = id_of(message) if OBJECT.match(message) else (None, {})
    except (ValueError, RecursionError):
        id, meta = None, {}
    if name := name_of(id):
        if isinstance(id, Number):
            meta = {**meta, "id": id}
        kind = "metaLong" if len(name) > MAX_XID_BYTES else "meta" if type(id) is str else "metaNumber"
        return Correlation(as_xid(name), kind, meta)
    return Correlation(as_xid(message, long=True), "sha1", meta)


def id_of(message: bytes) -> tuple[Any, dict[str, Any]]:
    """Return ``meta.id`` of a JSON object with all its digits, and ``meta``; None and {} if it has none.

    Raise ``ValueError`` or ``RecursionError`` if ``message`` is no JSON.
    """
    found = parse(message)
    meta = found.get("meta") if isinstance(found, dict) else None
    if not isinstance(meta, dict):
        return None, {}
    id = exactly(message, found, "meta", "id")
    return id, parse_slowly(message)["meta"] if any(map(_may_be_large, meta.values())) else meta


def _may_be_large(value: object) -> bool:
    """Return True if ``parse`` may have made a float of a whole number that is, or is in, ``value``."""
    kind = type(value)
    return kind is dict or kind is list or (kind is float and not -(2.0**63) < value < 2.0**63)  # type: ignore[operator]


def xid_of_digits(text: bytes) -> bytes:
    """Return a whole number as an xid."""
    return as_xid(text.lstrip(b"0") or b"0")


def id_as_json(correlation: Correlation) -> str:
    """Return the id by which a report or an answer names the message, as JSON."""
    xid, kind, meta = correlation
    if kind in ("number", "metaNumber"):
        return decoded(xid)
    return canonical(meta["id"]) if kind.startswith("meta") else quoted(decoded(xid))


def xid_of(id: object) -> bytes:
    """Return an id in JSON as an xid, the same for equal ids only; empty if it cannot be one."""
    return as_xid(name_of(id))


def as_xid(name: bytes, *, long: bool = False) -> bytes:
    """Return the SHA-1 of ``name`` if it is ``long`` or has more than 512 bytes, else ``name``."""
    return sha1(name).hexdigest().encode() if long or len(name) > MAX_XID_BYTES else name


def name_of(id: object) -> bytes:
    """Return an id in JSON of any length as bytes: a text as it is, in quotes if it could be taken for a number."""
    if type(id) is str:
        return (quoted(id) if is_like_a_number(id) else id).encode(errors="surrogatepass")
    if type(id) is int:
        return str(id).encode()
    is_number = type(id) is Number or (type(id) is float and isfinite(id))
    return canonical_number(canonical(id), MAX_PLAIN_ZEROS).encode() if is_number else b""


def is_like_a_number(text: str) -> bool:
    """Return True for the canonical form of a number, and for a text that begins with a quote."""
    if text[:1] not in BEGINS_LIKE_A_NUMBER:
        return False
    if text.isascii() and text.isdigit():
        return text[0] != "0" or text == "0"
    return text[0] == '"' or (NUMBER.fullmatch(text) is not None and canonical_number(text, MAX_PLAIN_ZEROS) == text)
