"""Requests and answers of HTTP as messages: JSON, which any program reads and writes."""

import re
from base64 import b64decode, b64encode
from functools import lru_cache
from typing import Any, Final, NamedTuple

from common.http.answers import JSON, Header, end_to_end, error_body, is_name, is_value
from common.http.json import loads
from penstock.base.exact_json import as_json
from penstock.tracking.details import traceparent_of

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"})
"""Methods of requests that may be done twice."""
LARGE: Final = 65_536
"""Bytes of an answer from which its body is not parsed if it need not be."""
MAX_HEADERS: Final = 65_536
"""Most bytes of the headers of an answer: few clients read more, and those of 512 answers are remembered."""
BODY: Final = re.compile(rb'"(body(?:64)?)": ?"')
APART: Final = b"the body, which is kept apart"
ID_FIRST: Final = re.compile(rb'\s*\{\s*"id"\s*:\s*"([ !#-\[\]-~]+)"').match
"""How most answers begin: by it the client of one that is no JSON hears at once that it cannot be sent."""
NO_JSON: Final[dict[str, Any]] = {}
"""Stands for such an answer."""
LATE: Final = frozenset({"timeout", "expired", "queueTimeout"})
"""Reasons of errors that mean that an answer came too late, or never."""


class BadAnswer(ValueError):
    """An answer that cannot be sent to a client; the text says what was expected."""


class Answer(NamedTuple):
    """What is sent to a client: ``headers`` are safe to send, and end to end."""

    status: int
    headers: list[Header]
    body: bytes
    otherwise: str = ""
    """What may be done in place of it: ``cached`` or ``accept``, as hrouter's breaker says."""
    is_malformed: bool = False
    """Whether it says that a worker's answer cannot be sent."""


def failed(status: int, reason: str, id: str | None = None, retry_after: int | None = None) -> Answer:
    """Return an error of ours as an answer; ``retry_after`` is in seconds."""
    headers = [JSON] + ([(b"retry-after", b"%d" % retry_after)] if retry_after is not None else [])
    return Answer(status, headers, error_body(reason, id=id) if id else error_body(reason))


def request_message(
    id: str,
    reply_to: str,
    method: str,
    path: str,
    query: str,
    headers: list[Header],
    body: bytes,
    deadline: float,
    budget: float,
    owner: str = "",
) -> bytes:
    """Return a request as a message. ``headers`` have lower-case names, and are end to end.

    ``budget`` are the seconds from now to ``deadline``. ``owner`` is that of the token that the client has shown. A
    request that must not be done twice asks mdispatch for one delivery.
    """
    meta: dict[str, Any] = {"id": id, "replyTo": reply_to, "deadline": deadline, "budget": budget}
    if method not in IDEMPOTENT:
        meta["attempts"] = 1
    if owner:
        meta["owner"] = owner
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    if "traceparent" in dict(pairs):
        traces = [value for name, value in pairs if name == "traceparent"]
        if len(traces) == 1 and (trace := traceparent_of(traces[0])):
            meta["traceparent"] = trace
    message: dict[str, Any] = {
        "id": id,
        "replyTo": reply_to,
        "method": method,
        "path": path,
        "query": query,
        "headers": pairs,
    }
    if body:
        message.update(body_fields(body))
    message["deadline"], message["meta"] = deadline, meta
    return as_json(message)


def body_fields(body: bytes) -> dict[str, str]:
    """Return ``body`` as the field ``body`` if it is UTF-8, else as ``body64``."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body64": b64encode(body).decode()}


def id_of(message: Any) -> str | None:
    """Return the id of an answer, in ``id`` or in its ``meta``; None if it has none."""
    if not isinstance(message, dict):
        return None
    id = message.get("id")
    if id is None and isinstance(meta := message.get("meta"), dict):
        id = meta.get("id")
    return id if isinstance(id, str) else None


def parse(text: bytes) -> tuple[str, dict[str, Any]] | None:
    """Return the id of an answer and the answer, ``NO_JSON`` if it is none; None for what has no id."""
    try:
        message = loads(text) if len(text) < LARGE else _loads_large(text)
    except ValueError:
        found = ID_FIRST(text)
        return found and (found[1].decode(), NO_JSON)
    id = id_of(message)
    return None if id is None else (id, message)


def _loads_large(text: bytes) -> Any:
    """Return the value of ``text`` as ``loads`` does, but leave a body without escapes as bytes, unchecked."""
    found = BODY.search(text)
    start = found.end() if found else -1
    end = text.find(b'"', start)
    if found is None or end < 0 or text.find(b"\\", start, end) >= 0:
        return loads(text)
    message, name = loads(b"%b%b%b" % (text[:start], APART, text[end:])), found[1].decode()
    if not isinstance(message, dict) or message.get(name) != APART.decode():
        return loads(text)  # it is not the body of the answer itself
    message[name] = text[start:end]
    return message


def answer_of(message: dict[str, Any], id: str) -> Answer:
    """Return the answer in ``message``: what cannot be sent becomes 502, a worker's timeout 504."""
    error = message.get("error")
    if error is not None:
        given = error.get("reason") if isinstance(error, dict) else error
        reason = given if isinstance(given, str) else "failed"
        return failed(504 if reason in LATE else 502, reason, id)
    try:
        if message is NO_JSON:
            raise BadAnswer("expected JSON in UTF-8")
        return Answer(
            _status(message), _headers(message.get("headers", [])), _body(message), message.get("otherwise", "")
        )
    except BadAnswer as bad:
        return failed(502, f"bad answer: {bad}", id)._replace(is_malformed=True)


def _status(message: dict[str, Any]) -> int:
    status = message.get("status")
    if type(status) is not int or not 200 <= status <= 599:
        raise BadAnswer("status: expected a number from 200 to 599")
    return status


def _headers(pairs: Any) -> list[Header]:
    if not isinstance(pairs, list) or not {list}.issuperset(map(type, pairs)):
        raise BadAnswer("headers: expected a list of pairs")
    try:
        return _checked(tuple(map(tuple, pairs)))
    except TypeError:  # not hashable: no texts
        raise BadAnswer("headers: expected pairs of name and value") from None


@lru_cache(512)
def _checked(pairs: tuple[tuple[Any, ...], ...]) -> list[Header]:
    """Return the headers of an answer, once they are found safe to send; most answers of a worker have the same."""
    headers: list[Header] = []
    for pair in pairs:
        if not (len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], str)):
            raise BadAnswer("headers: expected pairs of name and value")
        try:
            name, value = pair[0].lower().encode("latin-1"), pair[1].encode("latin-1")
        except UnicodeEncodeError:
            raise BadAnswer("headers: expected characters of latin-1") from None
        if not is_name(name) or not is_value(value):
            raise BadAnswer("headers: a name or a value has a character that none may have")
        if name == b"content-length" and not value.isdigit():
            raise BadAnswer("headers: content-length: expected a number")
        headers.append((name, value))
    if sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEADERS:
        raise BadAnswer(f"headers: expected at most {MAX_HEADERS:,} bytes")
    return [pair for pair in end_to_end(headers) if pair[0] != b"date"]  # the connection writes its own


def _body(message: dict[str, Any]) -> bytes:
    text, binary = message.get("body"), message.get("body64")
    if text is None and binary is None:
        return b""
    try:
        if isinstance(text, bytes) and binary is None:
            return text
        if isinstance(text, str) and binary is None:
            return text.encode()
        if isinstance(binary, str | bytes) and text is None:
            return b64decode(binary, validate=True)
    except ValueError:
        raise BadAnswer("body64: expected Base64, body: Unicode") from None
    raise BadAnswer("expected a text as body or as body64")
