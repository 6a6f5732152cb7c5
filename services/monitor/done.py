"""What workers push to a namespace's ``done`` list, understood."""

import json
from typing import Any

from common.finisher import Said

UNREADABLE = "expected an id, an xid, or a JSON object with id or xid, and perhaps attempt, error, retry, touch"


def understood(entry: bytes) -> Said:
    """``3``, ``order-7``, or ``{"id": 3, "attempt": 1, "error": "no such customer", "retry": false}``."""
    if entry.isdigit():
        number = entry.lstrip(b"0") or b"0"
        return Said("done", id=number, xid=number)
    if not entry.lstrip().startswith(b"{"):
        return Said("done", xid=entry) if entry else Said("badDone", words=UNREADABLE)
    try:
        said = json.loads(entry)
    except (ValueError, RecursionError):
        return Said("badDone", words=UNREADABLE)
    id, xid = _id(said.get("id")), _name(said.get("xid"))
    if not id and not xid:
        return Said("badDone", words=UNREADABLE)
    attempt = said.get("attempt")
    named = Said("done", id, b"" if id else xid, str(attempt) if isinstance(attempt, int) else "")
    if "touch" in said:
        return _touch(named, said["touch"])
    if said.get("error") is None:
        return named
    words = str(said["error"]).encode(errors="surrogatepass")
    return named._replace(verdict="final" if said.get("retry") is False else "failed", words=words)


def _touch(named: Said, seconds: Any) -> Said:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 86_400:
        return Said("badDone", words="touch: expected a number of seconds up to 86400")
    return named._replace(verdict="touch", seconds=float(seconds))


def _id(value: object) -> bytes:
    name = _name(value)
    return (name.lstrip(b"0") or b"0") if name.isdigit() else b""


def _name(value: object) -> bytes:
    named = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value).encode(errors="surrogatepass") if named else b""
