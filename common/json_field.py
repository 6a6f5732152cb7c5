"""Read fields of a message that is a JSON object, by their paths."""

import json
from collections.abc import Callable
from typing import Any, Final

from penstock.exact_json import is_exact, parse

_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def object_of(message: bytes, parse: Callable[[bytes], Any] = parse) -> dict[str, Any]:
    """Return the JSON object that ``message`` is; an empty one if it is none. ``value_at`` reads its values exactly."""
    try:
        found: Any = parse(message)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def value_at(message: bytes, found: dict[str, Any], path: str) -> bytes | None:
    """Return the value at ``path``, e.g. ``meta.user``, of a message and its object, as JSON; None if null or absent.

    Equal values give equal bytes. The number 1 and the text "1" are not equal.
    """
    value = _at(found, path)
    if not is_exact(value):
        value = _at(object_of(message, json.loads), path)
    try:
        return None if value is None else _encode(value).encode()
    except RecursionError:
        return None


def _at(found: dict[str, Any], path: str) -> Any:
    value: Any = found
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
