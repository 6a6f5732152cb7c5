"""Masking of secrets: replace what JSON paths find in a message before it is archived."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from penstock.base.extras import MissingExtra, extra

if TYPE_CHECKING:
    import pyarrow as pa

MASK: Final = "***"
EXPECTED: Final = "expected parts of a document, e.g. $.card.number, $..password or $.items[*].price"
STEPS: Final = {"Root", "Child", "Descendants", "Fields", "Index", "Slice", "Wildcard", "Filter"}
"""Parts of a path that lead to places in the document. Parts that compute something are refused."""
CONDITIONS: Final = {"Expression", "And", "Or", "This"}
"""Further parts that are allowed in a filter."""


def checked(path: str) -> str:
    """Return ``path``, as a validator of settings. Raise ``ValueError``, which names it, if it cannot be masked."""
    try:
        _parsed(path)
    except MissingExtra as error:
        raise ValueError(f"{path!r}: {error}") from None
    return path


def masked(messages: "pa.Array", paths: Sequence[str]) -> "pa.Array":
    """Return ``hidden`` of each of ``messages`` (binary), unchanged if ``paths`` is empty."""
    if not paths or messages.null_count == len(messages):
        return messages
    import pyarrow as pa

    return pa.array([None if each is None else hidden(each, paths) for each in messages.to_pylist()], pa.binary())


def hidden(message: bytes, paths: Sequence[str]) -> bytes | None:
    """Replace all that ``paths`` find in ``message`` by ``"***"``. Return it byte for byte if they find nothing.

    Return None if it is not JSON or an object in it has a name twice, since its content is ambiguous then.
    """
    try:
        document = _decode(message.decode())
        places = [place for path in paths if _may_find(path, message) for place in _parsed(path).find(document)]
        for place in places:
            if place.context is None:
                return json.dumps(MASK).encode()
            place.path.update(place.context.value, MASK)
        return _encode(document, ascii=message.isascii()) if places else message
    except (ValueError, RecursionError):  # errors of encodings are ValueErrors
        return None


def _encode(document: Any, *, ascii: bool) -> bytes:
    return json.dumps(document, ensure_ascii=ascii, separators=(",", ":"), allow_nan=False).encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_decode: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_json).decode


def _may_find(path: str, message: bytes) -> bool:
    """Return False if ``message`` lacks a name that ``path`` needs; a backslash may be part of an escaped name."""
    return b"\\" in message or all(name in message for name in _names(path))


@lru_cache(100)
def _names(path: str) -> frozenset[bytes]:
    """Return the names of fields without which ``path`` finds nothing."""
    steps, names = [_parsed(path)], set[bytes]()
    while steps:
        step = steps.pop()
        kind = type(step).__name__
        if kind in ("Child", "Descendants"):
            steps += [step.left, step.right]
        elif kind == "Fields" and len(step.fields) == 1 and step.fields[0] != "*":
            names.add(step.fields[0].encode(errors="surrogatepass"))
    return frozenset(names)


@lru_cache(100)
def _parsed(path: str) -> Any:
    """Parse ``path``. Raise ``ValueError``, which says what is wrong with it."""
    with extra("spark"):
        from jsonpath_ng.exceptions import JSONPathError
        from jsonpath_ng.ext.parser import parse

    if not path.startswith("$"):
        raise ValueError(f"{path!r} does not begin with $: {EXPECTED}")
    if "`" in path or "=~" in path:
        raise ValueError(f"{path!r} computes something: {EXPECTED}")
    try:
        found = parse(path)
    except JSONPathError as error:
        raise ValueError(f"{path!r} is no JSON path ({error}): {EXPECTED}") from None
    steps = [found]
    while steps:
        step = steps.pop()
        if type(step).__name__ not in STEPS | CONDITIONS:
            raise ValueError(f"{path!r} computes something: {EXPECTED}")
        steps += [getattr(step, side) for side in ("left", "right", "target") if hasattr(step, side)]
        steps += [*getattr(step, "expressions", ()), *getattr(step, "operands", ())]
    return found
