"""Answers as bytes: status lines, headers that are safe to send, and errors."""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

from penstock.base.exact_json import as_json

Header = tuple[bytes, bytes]
_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
STATUS_LINES: Final = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"")) for status in range(100, 600)
}
HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
"""Headers that are for one connection, besides those that ``Connection`` names."""
is_name: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
is_value: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*").fullmatch
JSON: Final = (b"content-type", b"application/json")


@lru_cache(1_024)
def is_forwarded(name: bytes) -> bool:
    """Return whether only a trusted proxy may set the header ``name``, in which some programs take ``_`` for ``-``."""
    name = name.replace(b"_", b"-")
    return name.startswith(b"x-forwarded-") or name in (b"forwarded", b"x-real-ip")


def end_to_end(headers: Sequence[Header]) -> list[Header]:
    """Return ``headers``, whose names are lower case, without those that are for one connection.

    A client cannot have ``host`` removed, nor what proxies say, by naming them in ``Connection``.
    """
    names = dict(headers)
    if HOP_BY_HOP.isdisjoint(names):
        return [*headers]
    drop: Container[bytes] = HOP_BY_HOP
    if b"connection" in names:
        drop = {*HOP_BY_HOP, *(each for each in _named(headers) if each != b"host" and not is_forwarded(each))}
    return [pair for pair in headers if pair[0] not in drop]


def _named(headers: Sequence[Header]) -> Iterator[bytes]:
    """Yield the names of headers that ``Connection`` says are for one connection."""
    for name, value in headers:
        if name == b"connection":
            yield from (each.strip().lower() for each in value.split(b","))


def head(status: int, headers: Iterable[Header], date: bytes, more: bytes = b"") -> bytes:
    """Return the head of an answer; ``date`` and ``more`` are lines of headers."""
    lines = [STATUS_LINES[status], date]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines += (more, b"\r\n")
    return b"".join(lines)


def error_body(reason: str, **more: Any) -> bytes:
    """Return the JSON body of an error."""
    return as_json({"error": reason, **more}) + b"\n"


def refusal(status: int, reason: str, date: bytes) -> bytes:
    """Return a whole answer that ends its connection."""
    body = error_body(reason)
    headers = [JSON, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    return head(status, headers, date) + body
