"""JSON of requests, with orjson where it is installed (the extra ``speed``), else with the standard library."""

import json
from math import isfinite
from typing import Any

try:
    import orjson
except ModuleNotFoundError:
    orjson = None  # type: ignore[assignment]


def loads(text: bytes) -> Any:
    """Return the value of ``text``; raise ``ValueError`` if it is no JSON."""
    if orjson is not None:
        return orjson.loads(text)
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(text: str) -> float:
    """Return a number. Raise ``ValueError`` for NaN and Infinity, which are no JSON, and for what is too large."""
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number is not finite")
    return value
