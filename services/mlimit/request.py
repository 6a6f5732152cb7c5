"""What mlimit reads of a message: whose it is, its deadline, and where an answer goes."""

import json
from collections.abc import Callable
from hashlib import blake2b
from math import inf
from typing import Any, Final, NamedTuple

from common.json_field import object_of, value_at

DIGEST_BYTES: Final = 16
NOBODY: Final = b""
"""The value of all messages without the field."""
Value = Callable[[bytes, dict[str, Any]], bytes]


class Limited(NamedTuple):
    """What mlimit reads of a message."""

    bucket: str
    """Digest of the value whose messages share a limit; empty if all do."""
    deadline: float
    """Seconds since the epoch; infinite if there is none."""
    id: str
    """Empty if there is none: then nobody can be answered."""
    reply_to: str


def reader(by: str, field: str | None) -> Callable[[bytes], Limited]:
    """Return what reads a message."""
    value = {"field": _value_of_field, "header": _value_of_header, "all": None}[by]

    def read(message: bytes) -> Limited:
        found = object_of(message)
        meta = found.get("meta")
        words = {**found, **meta} if isinstance(meta, dict) else found
        bucket = blake2b(value(message, found, str(field)), digest_size=DIGEST_BYTES).hexdigest() if value else ""
        return Limited(bucket, _number(words.get("deadline")), _text(words.get("id")), _text(words.get("replyTo")))

    return read


def too_many(request: Limited, wait: int) -> bytes:
    """Return the answer of status 429 that asks to come again in ``wait`` seconds."""
    headers = [["content-type", "text/plain; charset=utf-8"], ["retry-after", str(wait)]]
    body = f"Too many requests: come again in {wait} s\n"
    answer = {"id": request.id, "meta": {"id": request.id}, "status": 429, "headers": headers, "body": body}
    return json.dumps(answer).encode()


def _value_of_field(message: bytes, found: dict[str, Any], path: str) -> bytes:
    return value_at(message, found, path) or NOBODY


def _value_of_header(_: bytes, found: dict[str, Any], name: str) -> bytes:
    """Return the first header of that name, whose letters are lower case in messages."""
    headers = found.get("headers")
    for pair in headers if isinstance(headers, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and pair[0] == name.lower() and isinstance(pair[1], str):
            return pair[1].encode(errors="surrogatepass")
    return NOBODY


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e11:
        return inf
    return float(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
