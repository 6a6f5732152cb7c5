"""What workers push to a namespace's ``done`` list, understood."""

import json
from typing import Any

from common.tracking.completion import Completion, attempt_of

UNREADABLE = "expected an id, an xid, or a JSON object with id or xid, and perhaps attempt, error, retry, touch"
NO_ATTEMPT = "attempt: expected a whole number, as the record has it"
NO_ID = "expected an id, since doneBy is id, or a JSON object with id or xid"


def parse_done(entry: bytes, done_by: str = "either") -> Completion:
    """``3``, ``order-7``, or ``{"id": 3, "attempt": 1, "error": "no such customer", "retry": false}``.

    ``done_by`` says what plain text is: ``xid``, ``id`` or ``either``.
    """
    if not entry.lstrip().startswith(b"{"):
        return _plain(entry, done_by)
    try:
        said = json.loads(entry)
    except (ValueError, RecursionError):
        return Completion("badDone", words=UNREADABLE)
    id, xid = _id(said.get("id")), _name(said.get("xid"))
    if not id and not xid:
        return Completion("badDone", words=UNREADABLE)
    attempt = attempt_of(said.get("attempt"))
    if attempt is None:
        return Completion("badDone", words=NO_ATTEMPT)
    named = Completion("done", id, b"" if id else xid, attempt)
    if "touch" in said:
        return _touch(named, said["touch"])
    if said.get("error") is None:
        return named
    words = str(said["error"]).encode(errors="surrogatepass")
    return named._replace(verdict="final" if said.get("retry") is False else "failed", words=words)


def _plain(entry: bytes, done_by: str) -> Completion:
    if entry.isdigit():
        number = entry.lstrip(b"0") or b"0"
        return Completion("done", id=b"" if done_by == "xid" else number, xid=b"" if done_by == "id" else number)
    if not entry or done_by == "id":
        return Completion("badDone", words=NO_ID if entry else UNREADABLE)
    return Completion("done", xid=entry)


def _touch(named: Completion, seconds: Any) -> Completion:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 86_400:
        return Completion("badDone", words="touch: expected a number of seconds up to 86400")
    return named._replace(verdict="touch", seconds=float(seconds))


def _id(value: object) -> bytes:
    name = _name(value)
    return (name.lstrip(b"0") or b"0") if name.isdigit() else b""


def _name(value: object) -> bytes:
    named = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value).encode(errors="surrogatepass") if named else b""
