"""Parser of the entries that workers push to a namespace's ``done`` list."""

from typing import Any, Final

from common.tracking.completion import Completion, attempt_of
from penstock.base.encoding import decoded, encoded
from penstock.base.exact_json import exactly, parse
from penstock.tracking.correlation import OBJECT, as_xid, is_like_a_number, xid_of, xid_of_digits
from penstock.tracking.details import seconds_of

MAX_ERROR_BYTES: Final = 65_536
"""Longest text of a worker's error that is kept: a script writes it into a dead letter and an answer."""
UNREADABLE = "expected an id, an xid, or a JSON object with id or xid, and perhaps attempt, work, error, retry, touch"
NO_ATTEMPT = "attempt: expected a whole number, as the record has it"
NO_ID = "expected an id, since doneBy is id, or a JSON object with id or xid"


def parse_done(entry: bytes, done_by: str = "either") -> Completion:
    """Parse ``3``, ``order-7``, or ``{"id": 3, "attempt": 1, "work": 0.2, "error": "no tea", "retry": false}``.

    ``done_by`` is the policy's doneBy, i.e. what plain text means: ``xid``, ``id`` or ``either``.
    """
    if not OBJECT.match(entry):
        return _parse_text(entry, done_by)
    try:
        fields = parse(entry)
        id, named = _id_of(exactly(entry, fields, "id")), exactly(entry, fields, "xid")
    except (ValueError, RecursionError):
        return Completion("badDone", words=UNREADABLE)
    xid = xid_of(named)
    if not id and not xid:
        return Completion("badDone", words=UNREADABLE)
    attempt = attempt_of(fields.get("attempt"))
    if attempt is None:
        return Completion("badDone", words=NO_ATTEMPT)
    said = Completion("done", id, b"" if id else xid, attempt, work=seconds_of(fields.get("work")))
    if not id and type(named) is str and is_like_a_number(named):
        said = said._replace(other=as_xid(encoded(named)))
    if "touch" in fields:
        return _touch(said, fields["touch"])
    if fields.get("error") is None:
        return said
    words = str(fields["error"]).encode(errors="surrogatepass")[:MAX_ERROR_BYTES]
    return said._replace(verdict="final" if fields.get("retry") is False else "failed", words=words)


def _parse_text(entry: bytes, done_by: str) -> Completion:
    if entry.isdigit():
        number = entry.lstrip(b"0") or b"0"
        if done_by == "id":
            return Completion("done", id=number)
        other = entry if entry != number else b'"%b"' % number
        id = b"" if done_by == "xid" else number
        return Completion("done", id=id, xid=xid_of_digits(entry), other=as_xid(other))
    if not entry or done_by == "id":
        return Completion("badDone", words=NO_ID if entry else UNREADABLE)
    text = decoded(entry)
    return Completion("done", xid=as_xid(entry), other=xid_of(text) if is_like_a_number(text) else b"")


def _touch(named: Completion, seconds: Any) -> Completion:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 86_400:
        return Completion("badDone", words="touch: expected a number of seconds up to 86400")
    return named._replace(verdict="touch", seconds=float(seconds))


def _id_of(value: object) -> bytes:
    name = value.encode(errors="replace") if type(value) is str else xid_of(value)
    return (name.lstrip(b"0") or b"0") if name.isdigit() else b""
