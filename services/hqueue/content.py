"""Values, results and errors as bytes: JSON or bytes as a client sent them, never executed, never guessed."""

import math
from base64 import b64encode
from typing import Any, Final

from pydantic_core import from_json

from penstock.base.errors import Unopenable
from penstock.base.exact_json import as_json, may_exceed_a_double, parse_exactly
from services.hqueue.problem import Problem
from services.hqueue.seals import OPEN, Lock

JSON_KIND: Final = b"j"
BYTES_KIND: Final = b"b"


def parse(body: bytes) -> Any:
    """Return the value of a request's body, with a ``Number`` where a double may lose digits.

    Raise ``Problem`` if it is no JSON.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
        if may_exceed_a_double(body):
            value = parse_exactly(body)
    except ValueError as error:
        raise Problem(400, f"the body is no JSON: {error}") from None
    if not _is_finite(value):
        raise Problem(400, "the body has a number that is too large")
    return value


def _is_finite(value: Any) -> bool:
    """Return False if ``value`` has a number such as 1e400, which is no number of JSON once it is read."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, dict) or all(map(_is_finite, value.values()))


def content_of(body: Any, name: str, default: Any = None) -> bytes:
    """Return what the field ``name``, or ``<name>64``, of a request's body holds, with its kind in front."""
    raw = getattr(body, f"{name}64", None)
    if raw is not None:
        return BYTES_KIND + bytes(raw)
    return JSON_KIND + as_json(getattr(body, name, default))


def opened(lock: Lock, sealed: bytes | None, where: bytes) -> bytes:
    """Return a content with its kind in front. Raise ``Unopenable`` if it cannot be opened, or is none then."""
    if sealed is None:
        raise Unopenable("it is not there any more")
    content = lock.open(sealed, where)
    if content[:1] == BYTES_KIND:
        return content
    try:
        if content[:1] != JSON_KIND:
            raise ValueError("of no kind that is known")
        if lock is OPEN:  # else nobody but us has written it
            from_json(content[1:], allow_inf_nan=False)
    except ValueError as error:
        raise Unopenable(f"changed after it was stored: {error}") from None
    return content


def member(name: str, content: bytes) -> bytes:
    """Return the member of a JSON object that holds ``content``: ``"value":...`` or ``"value64":"..."``."""
    if content[:1] == BYTES_KIND:
        return b'"%b64":"%b"' % (name.encode(), b64encode(content[1:]))
    return b'"%b":%b' % (name.encode(), content[1:])
