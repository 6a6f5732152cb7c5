"""What a consumer publishes when a group has done a job."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from penstock.base.encoding import decoded, encoded

UNREADABLE: Final = {"name": "Error", "message": "the consumer has published no JSON"}
_decode: Final = json.JSONDecoder().raw_decode


class Completion(NamedTuple):
    """That a group has completed a job; ``error`` is what its consumer says if it has rejected it."""

    stream: str
    job: str
    group: str
    at: datetime
    error: Any = None
    values: dict[str, bytes] = {}  # noqa: RUF012  # never changed
    """Small values that its processor has returned, as they are stored."""


def parse(message: bytes, at: datetime) -> Completion | None:
    """Return the completion in a message; None if it is none."""
    try:
        found = _json(message.decode())
        values = {name: encoded(value) for name, value in found["val"].items()} if "val" in found else {}
        return Completion(str(found["str"]), str(found["job"]), str(found["grp"]), at, found.get("err"), values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _parse_undefined(message, at)


def _json(text: str) -> Any:
    """Return as ``json.loads`` does, in fewer steps if there are no spaces around."""
    if text[:1] == "{":
        found, end = _decode(text)
        if end == len(text):
            return found
    return json.loads(text)


def _parse_undefined(message: bytes, at: datetime) -> Completion | None:
    """Return the completion in what Node publishes for ``throw undefined``, which is no JSON."""
    text = decoded(message)
    if not text.endswith('"err":undefined}'):
        return None
    found = parse(encoded(text.removesuffix(',"err":undefined}') + "}"), at)
    return found._replace(error=UNREADABLE) if found else None


def parsed_entries(entries: Iterable[tuple[bytes, Sequence[bytes]]]) -> Iterator[Completion]:
    """Yield the completions in entries of the stream that keeps them."""
    for entry, fields in entries:
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        at = datetime.fromtimestamp(int(entry.partition(b"-")[0]) / 1000, UTC)
        if completion := parse(named.get(b"msg", b""), at):
            yield completion
