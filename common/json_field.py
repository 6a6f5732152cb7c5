"""Read fields of a message that is a JSON object, by their paths."""

from typing import Any

from penstock.base.exact_json import canonical, exactly, parse


def object_of(message: bytes) -> dict[str, Any]:
    """Return the JSON object that ``message`` is; an empty one if it is none. ``value_at`` reads its values exactly."""
    try:
        found: Any = parse(message)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def value_at(message: bytes, found: dict[str, Any], path: str) -> bytes | None:
    """Return the value at ``path``, e.g. ``meta.user``, of a message and its object, as JSON; None if null or absent.

    Equal values give equal bytes, all others differ: see ``penstock.base.exact_json``.
    """
    try:
        value = exactly(message, found, *path.split("."))
        return None if value is None else canonical(value).encode()
    except (ValueError, RecursionError):
        return None
