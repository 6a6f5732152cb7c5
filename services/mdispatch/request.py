"""What a request says of itself: by which name a worker will call it, where its answer goes, when it is wanted."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

from penstock.tracking.correlation import correlation_of

LONGEST_DELAY: Final = 10 * 31_536_000
"""Seconds that a message may be held."""
_json: Final = json.JSONEncoder(ensure_ascii=False).encode


class Unreadable(ValueError):
    """A request whose ``meta`` asks for what cannot be; the words say what was expected."""


class Request(NamedTuple):
    """By which xid the request is known, what ``dispatch.lua`` is told of it, and the list for its answer, if named."""

    xid: bytes
    words: str
    reply_to: str = ""


def read(message: bytes, refusal: Callable[[str], str | None]) -> Request:
    """``refusal`` says why a list cannot be one for answers. Raises ``Unreadable``."""
    name, kind, meta = correlation_of(message)
    request = Request(name, kind)
    if meta.keys() <= {"id"}:
        return request
    more = {"replyTo": _reply_to(meta, refusal), "when": _when(meta)}
    wanted = {word: value for word, value in more.items() if value is not None}
    if not wanted:
        return request
    return Request(request.xid, _json({"type": request.words, **wanted}), wanted.get("replyTo", ""))


def rejected(reason: str, error: str) -> Request:
    """A request that goes to the dead letters."""
    return Request(b"", _json({"reject": reason, "error": error}))


def _reply_to(meta: dict[str, Any], refusal: Callable[[str], str | None]) -> str | None:
    name = meta.get("replyTo")
    if name is None:
        return None
    if not isinstance(name, str) or not name or not name.isprintable():
        raise Unreadable("meta.replyTo: expected the name of a list")
    if reason := refusal(name):
        raise Unreadable(f"meta.replyTo: {reason}")
    return name


def _when(meta: dict[str, Any]) -> str | None:
    if (delay := meta.get("delay")) is not None:
        if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= LONGEST_DELAY:
            raise Unreadable(f"meta.delay: expected a number of seconds from 0 to {LONGEST_DELAY}")
        return f"+{delay:.6f}"
    at = meta.get("deliverAt")
    if isinstance(at, str):
        at = _seconds(at)
    elif at is None:
        return None
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e11:
        raise Unreadable("meta.deliverAt: expected seconds since the epoch, or a time as 2026-01-31T12:00:00Z")
    return f"{at:.6f}"


def _seconds(time: str) -> float | None:
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None
