"""Correlation ids (xids): identify a message by its content."""

import json
import re
from hashlib import sha1
from math import isfinite
from typing import Any, Final, NamedTuple

from penstock.exact_json import is_exact, parse

MAX_XID_BYTES: Final = 512
"""A longer number or ``meta.id`` is no xid: the SHA-1 of the message is used instead."""
OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
"""The beginning of a JSON object, perhaps behind a byte order mark."""


class Correlation(NamedTuple):
    """The xid of a message, its origin, and the message's ``meta`` or ``{}``.

    Origins: ``number``, ``meta``, ``metaNumber`` (its ``meta.id`` is no text, and so it is in answers) or ``sha1``.
    """

    xid: bytes
    kind: str
    meta: dict[str, Any]


def correlation_of(message: bytes) -> Correlation:
    """Return the correlation id of ``message``: the number that it is, its ``meta.id``, or its SHA-1."""
    if message.isdigit() and len(message) <= MAX_XID_BYTES:
        return Correlation(message.lstrip(b"0") or b"0", "number", {})
    meta = _meta(message) if OBJECT.match(message) else {}
    id = meta.get("id")
    if xid := xid_of(id):
        return Correlation(xid, "meta" if isinstance(id, str) else "metaNumber", meta)
    return Correlation(sha1(message).hexdigest().encode(), "sha1", meta)


def xid_of(id: object) -> bytes:
    """Return an id in JSON as an xid, the same for equal numbers; empty if it cannot be one."""
    if isinstance(id, float):
        id = int(id) if id.is_integer() else repr(id) if isfinite(id) else None
    if isinstance(id, bool) or not isinstance(id, str | int):
        return b""
    xid = str(id).encode(errors="surrogatepass")
    return xid if len(xid) <= MAX_XID_BYTES else b""


def _meta(message: bytes) -> dict[str, Any]:
    try:
        meta = parse(message).get("meta")
        if isinstance(meta, dict) and not all(map(is_exact, meta.values())):
            meta = json.loads(message)["meta"]
    except (ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}
