"""Parse JSON with orjson if it is installed (the extra ``speed``), and find out whether that lost a number's digits."""

import json
from typing import Any, Final

try:
    import orjson
except ModuleNotFoundError:
    orjson = None  # type: ignore[assignment]

LARGE: Final = 2**63
"""orjson makes a float of a whole number beyond 64 bits."""


def parse(message: bytes) -> Any:
    """Return the value of ``message``, for which ``is_exact`` holds or not; raise as ``json.loads`` does.

    orjson takes a tenth of the time, and refuses some of what ``json`` accepts: that is parsed again.
    """
    if orjson is not None:
        try:
            return orjson.loads(message)
        except orjson.JSONDecodeError:
            pass
    return json.loads(message)


def is_exact(value: object) -> bool:
    """Return False if ``json.loads`` may return another value than ``parse`` did: for a large float, list or object."""
    kind = type(value)
    return kind is str or kind is int or value is None or kind is bool or (kind is float and -LARGE < value < LARGE)  # type: ignore[operator]
