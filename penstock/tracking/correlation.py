"""Correlation ids (xids): identify a message by its content."""

import json
import re
from hashlib import sha1
from typing import Any, Final, NamedTuple

from penstock.exact_json import is_exact, parse

MAX_XID_BYTES: Final = 512
"""A longer number or ``meta.id`` is no xid: the SHA-1 of the message is used instead."""
OBJECT: Final = re.compile(rb"\s*\{")


class Correlation(NamedTuple):
    """The xid of a message, its origin (``number``, ``meta`` or ``sha1``), and the message's ``meta`` or ``{}``."""

    xid: bytes
    kind: str
    meta: dict[str, Any]


def correlation_of(message: bytes) -> Correlation:
    """Return the correlation id of ``message``: the number that it is, its ``meta.id``, or its SHA-1."""
    if message.isdigit() and len(message) <= MAX_XID_BYTES:
        return Correlation(message.lstrip(b"0") or b"0", "number", {})
    meta = _meta(message) if OBJECT.match(message) else {}
    xid = xid_of(meta.get("id"))
    return Correlation(xid, "meta", meta) if xid else Correlation(sha1(message).hexdigest().encode(), "sha1", meta)


def xid_of(id: object) -> bytes:
    """Return ``meta.id`` as an xid; empty if it cannot be one."""
    if isinstance(id, bool) or not isinstance(id, str | int | float):
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
