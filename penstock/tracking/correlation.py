"""What a message is called by those who do not know its id: its xid, which stands in the message itself."""

import json
import re
from hashlib import sha1
from typing import Any, Final, NamedTuple

MAX_XID_BYTES: Final = 512
"""Bytes; a longer one is taken for a text, and its SHA-1 for its name."""
OBJECT: Final = re.compile(rb"\s*\{")


class Correlation(NamedTuple):
    """The xid of a message, where it comes from (``number``, ``meta`` or ``sha1``), and its ``meta``, if it has one."""

    xid: bytes
    kind: str
    meta: dict[str, Any]


def correlation_of(message: bytes) -> Correlation:
    if message.isdigit() and len(message) <= MAX_XID_BYTES:
        return Correlation(message.lstrip(b"0") or b"0", "number", {})
    meta = _meta(message) if OBJECT.match(message) else {}
    name = xid_of(meta.get("id"))
    return Correlation(name, "meta", meta) if name else Correlation(sha1(message).hexdigest().encode(), "sha1", meta)


def xid_of(id: object) -> bytes:
    """The bytes of ``meta.id``; empty where it cannot be a name."""
    if isinstance(id, bool) or not isinstance(id, str | int | float):
        return b""
    name = str(id).encode(errors="surrogatepass")
    return name if len(name) <= MAX_XID_BYTES else b""


def _meta(message: bytes) -> dict[str, Any]:
    try:
        meta = json.loads(message).get("meta")
    except (ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}
