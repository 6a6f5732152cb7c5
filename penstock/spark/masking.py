"""Secrets in payloads: what JSON paths find in a message is replaced before the message is archived."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MASK: Final = "***"
EXPECTED: Final = "expected parts of a document, e.g. $.card.number, $..password or $.items[*].price"
STEPS: Final = {"Root", "Child", "Descendants", "Fields", "Index", "Slice", "Wildcard", "Filter"}
"""What a path may be made of: all of it leads to places in the document, none of it computes anything."""
CONDITIONS: Final = {"Expression", "And", "Or", "This"}
"""The same within a filter."""


def checked(path: str) -> str:
    """``path`` itself, if it can be masked. Raises ``ValueError``, which names it; for a field of settings."""
    try:
        _parsed(path)
    except ImportError:
        raise ValueError(f"{path!r}: paths need what is not installed: pip install 'penstock[spark]'") from None
    return path


def masked(rows: "DataFrame", paths: Sequence[str]) -> "DataFrame":
    """``rows`` with the column ``message`` (binary) as ``hidden`` leaves it; as they are where there are no paths.

    Raises ``ValueError`` for a path that is none.
    """
    if not paths:
        return rows
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    for path in paths:
        checked(path)
    kept = tuple(paths)

    def hide(messages: pa.Array) -> pa.Array:
        if messages.null_count == len(messages):
            return messages
        return pa.array([None if each is None else hidden(each, kept) for each in messages.to_pylist()], pa.binary())

    function: Any = arrow_udf  # its stub does not know of strings as types
    return rows.withColumn("message", function(hide, "binary")("message"))


def hidden(message: bytes, paths: Sequence[str]) -> bytes | None:
    """``message`` with ``"***"`` for all that ``paths`` find in it, its other bytes as they were if they find nothing.

    None for what is no JSON, or says a name twice in an object, so that nobody can tell what is in it.
    """
    try:
        document = _decode(message.decode())
        places = [place for path in paths if _may_find(path, message) for place in _parsed(path).find(document)]
        for place in places:
            if place.context is None:
                return json.dumps(MASK).encode()
            place.path.update(place.context.value, MASK)
        return _encode(document, ascii=message.isascii()) if places else message
    except (ValueError, RecursionError):  # those of encodings are ValueErrors
        return None


def _encode(document: Any, *, ascii: bool) -> bytes:
    return json.dumps(document, ensure_ascii=ascii, separators=(",", ":")).encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


_decode: Final = json.JSONDecoder(object_pairs_hook=_object).decode


def _may_find(path: str, message: bytes) -> bool:
    """Whether every name that ``path`` needs stands in ``message``, where it may be written with a backslash, too."""
    return b"\\" in message or all(name in message for name in _names(path))


@lru_cache(100)
def _names(path: str) -> frozenset[bytes]:
    """Of fields on the way, without which nothing is found."""
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
    """Raises ``ValueError`` with what is wrong with ``path``."""
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
