"""Parser of a request: its correlation id, the list for its answer, the time of its delivery."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

from penstock.tracking.correlation import correlation_of
from penstock.tracking.details import written_details

MAX_DELAY_SECONDS: Final = 10 * 31_536_000
MAX_ATTEMPTS: Final = 100
_quoted: Final = json.encoder.encode_basestring


def _json(words: dict[str, str]) -> str:
    """Return an object with texts, as ``json.dumps`` does, in a third of its time."""
    return f"{{{', '.join(f'{_quoted(name)}: {_quoted(word)}' for name, word in words.items())}}}"


class BadRequest(ValueError):
    """A request with an invalid ``meta``; the text says what was expected."""


class Parsed(NamedTuple):
    """What ``dispatch.lua`` needs of a request."""

    xid: bytes
    """Empty for a dead letter."""
    spec: str
    """The type; or JSON if there is more to say: see ``dispatch.lua``."""
    reply_to: str = ""
    """The list for its answer; empty if the request names none."""


def parse_request(message: bytes, refusal: Callable[[str], str | None], *, obeys_attempts: bool = True) -> Parsed:
    """Parse a request, or raise ``BadRequest``; ``refusal`` returns why a list may not get answers, or None.

    Without ``obeys_attempts`` its ``meta.attempts`` is ignored.
    """
    name, kind, meta = correlation_of(message)
    request = Parsed(name, kind)
    if meta.keys() <= {"id"}:
        return request
    until, details = written_details(meta)
    more = {
        "replyTo": _reply_to(meta, refusal),
        "attempts": _attempts(meta) if obeys_attempts else None,
        "when": _when(meta),
        "until": until,
        "details": details,
    }
    wanted = {word: value for word, value in more.items() if value is not None}
    if not wanted:
        return request
    return Parsed(request.xid, _json({"type": request.spec, **wanted}), wanted.get("replyTo", ""))


def rejection(reason: str, error: str) -> Parsed:
    """Return a request that goes to the dead letters."""
    return Parsed(b"", _json({"reject": reason, "error": error}))


def _reply_to(meta: dict[str, Any], refusal: Callable[[str], str | None]) -> str | None:
    name = meta.get("replyTo")
    if name is None:
        return None
    if not isinstance(name, str) or not name or not name.isprintable():
        raise BadRequest("meta.replyTo: expected the name of a list")
    if reason := refusal(name):
        raise BadRequest(f"meta.replyTo: {reason}")
    return name


def _attempts(meta: dict[str, Any]) -> str | None:
    """Return the most deliveries that the request wants of itself, if the setting ``attempts`` allows more."""
    attempts = meta.get("attempts")
    if attempts is None:
        return None
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MAX_ATTEMPTS:
        raise BadRequest(f"meta.attempts: expected a whole number from 1 to {MAX_ATTEMPTS}")
    return str(attempts)


def _when(meta: dict[str, Any]) -> str | None:
    if (delay := meta.get("delay")) is not None:
        if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= MAX_DELAY_SECONDS:
            raise BadRequest(f"meta.delay: expected a number of seconds from 0 to {MAX_DELAY_SECONDS}")
        return f"+{delay + 0.0:.6f}"  # -0.0 becomes 0.0
    at = meta.get("deliverAt")
    if isinstance(at, str):
        at = _seconds(at)
    elif at is None:
        return None
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e11:
        raise BadRequest("meta.deliverAt: expected seconds since the epoch, or a time as 2026-01-31T12:00:00Z")
    return f"{at + 0.0:.6f}"


def _seconds(time: str) -> float | None:
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None
