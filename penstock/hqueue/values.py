"""Values in JSON: anything that JSON has, and bytes, which go as base64 in a field of their own."""

import base64
import binascii
import json
from typing import Any

from penstock.base import exact_json
from penstock.base.errors import Unreadable, WrongCall
from penstock.base.exact_json import has_number


def packed(name: str, value: Any) -> dict[str, Any]:
    """Return the field ``name`` with ``value``, or ``name64`` if that is bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {f"{name}64": base64.b64encode(value).decode()}
    return {name: value}


def unpacked(name: str, fields: dict[str, Any]) -> Any:
    """Return what ``packed`` was given. Raise ``Unreadable`` if the base64 is none."""
    text = fields.get(f"{name}64")
    if text is None:
        return fields.get(name)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise Unreadable(f"{name}64 is no base64") from None


def as_json(body: Any) -> bytes:
    """Return ``body`` as JSON. Raise ``WrongCall`` if JSON does not have it, e.g. NaN, or bytes inside a list."""
    try:
        text = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return exact_json.as_json(body) if has_number(body) else text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongCall(f"expected a value that JSON has, or bytes: {error}") from None
