"""What a request says of itself: by which name a worker will call it, where its answer goes, when it is wanted."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from hashlib import sha1
from typing import Any, Final, NamedTuple

LONGEST_XID: Final = 512
"""Bytes; a longer one is taken for a text, and its SHA-1 for its name."""
LONGEST_DELAY: Final = 10 * 31_536_000
"""Seconds that a message may be held."""
OBJECT: Final = re.compile(rb"\s*\{")


class Unreadable(ValueError):
    """A request whose ``meta`` asks for what cannot be; the words say what was expected."""


class Request(NamedTuple):
    """``when``: seconds since the epoch, ``+`` seconds from now, or empty for at once."""

    xid: bytes
    type: str
    reply_to: bytes = b""
    when: str = ""


def read(message: bytes, may_reply_to: Callable[[str], str | None]) -> Request:
    """``may_reply_to`` says why a list cannot be one for answers. Raises ``Unreadable``."""
    if message.isdigit() and len(message) <= LONGEST_XID:
        return Request(message.lstrip(b"0") or b"0", "number")
    meta = _meta(message) if OBJECT.match(message) else {}
    name = xid_of(meta.get("id"))
    request = (
        Request(name, "meta") if name else Request(sha1(message, usedforsecurity=False).hexdigest().encode(), "sha1")
    )
    return (
        request if meta.keys() <= {"id"} else request._replace(reply_to=_reply_to(meta, may_reply_to), when=_when(meta))
    )


def xid_of(id: object) -> bytes:
    """The bytes of ``meta.id``; empty where it cannot be a name."""
    if isinstance(id, bool) or not isinstance(id, str | int | float):
        return b""
    name = str(id).encode(errors="surrogatepass")
    return name if len(name) <= LONGEST_XID else b""


def _meta(message: bytes) -> dict[str, Any]:
    try:
        meta = json.loads(message).get("meta")
    except (ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _reply_to(meta: dict[str, Any], may_reply_to: Callable[[str], str | None]) -> bytes:
    if (name := meta.get("replyTo")) is None:
        return b""
    if not isinstance(name, str) or not name:
        raise Unreadable("meta.replyTo: expected the name of a list")
    if reason := may_reply_to(name):
        raise Unreadable(f"meta.replyTo: {reason}")
    return name.encode(errors="surrogatepass")


def _when(meta: dict[str, Any]) -> str:
    if (delay := meta.get("delay")) is not None:
        if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= LONGEST_DELAY:
            raise Unreadable(f"meta.delay: expected a number of seconds from 0 to {LONGEST_DELAY}")
        return f"+{delay:.3f}" if delay else ""
    if (at := meta.get("deliverAt")) is None:
        return ""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            at = None
        at = at.timestamp() if at and at.tzinfo else None
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e11:
        raise Unreadable("meta.deliverAt: expected seconds since the epoch, or a time as 2026-01-31T12:00:00Z")
    return f"{at:.3f}"
