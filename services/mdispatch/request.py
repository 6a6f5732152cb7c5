"""Parser of a request: its correlation id, the list for its answer, the time of its delivery."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

from penstock.tracking.correlation import correlation_of

MAX_DELAY_SECONDS: Final = 10 * 31_536_000
_json: Final = json.JSONEncoder(ensure_ascii=False).encode


class BadRequest(ValueError):
    """A request with an invalid ``meta``; the text says what was expected."""


class Request(NamedTuple):
    """What ``dispatch.lua`` needs of a request."""

    xid: bytes
    """Empty for a dead letter."""
    spec: str
    """The type; or JSON if there is more to say: type, replyTo and when, or reject and error."""
    reply_to: str = ""
    """The list for its answer; empty if the request names none."""


def parse_request(message: bytes, refusal: Callable[[str], str | None]) -> Request:
    """Parse a request, or raise ``BadRequest``; ``refusal`` returns why a list may not get answers, or None."""
    name, kind, meta = correlation_of(message)
    request = Request(name, kind)
    if meta.keys() <= {"id"}:
        return request
    more = {"replyTo": _reply_to(meta, refusal), "when": _when(meta)}
    wanted = {word: value for word, value in more.items() if value is not None}
    if not wanted:
        return request
    return Request(request.xid, _json({"type": request.spec, **wanted}), wanted.get("replyTo", ""))


def rejection(reason: str, error: str) -> Request:
    """Return a request that goes to the dead letters."""
    return Request(b"", _json({"reject": reason, "error": error}))


def _reply_to(meta: dict[str, Any], refusal: Callable[[str], str | None]) -> str | None:
    name = meta.get("replyTo")
    if name is None:
        return None
    if not isinstance(name, str) or not name or not name.isprintable():
        raise BadRequest("meta.replyTo: expected the name of a list")
    if reason := refusal(name):
        raise BadRequest(f"meta.replyTo: {reason}")
    return name


def _when(meta: dict[str, Any]) -> str | None:
    if (delay := meta.get("delay")) is not None:
        if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= MAX_DELAY_SECONDS:
            raise BadRequest(f"meta.delay: expected a number of seconds from 0 to {MAX_DELAY_SECONDS}")
        return f"+{delay:.6f}"
    at = meta.get("deliverAt")
    if isinstance(at, str):
        at = _seconds(at)
    elif at is None:
        return None
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e11:
        raise BadRequest("meta.deliverAt: expected seconds since the epoch, or a time as 2026-01-31T12:00:00Z")
    return f"{at:.6f}"


def _seconds(time: str) -> float | None:
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None
