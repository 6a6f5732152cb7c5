"""What is read: where it begins and ends, as in Spark's Kafka source, and which namespaces and kinds of events."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.options import Options
from penstock.spark.sources.places import Place

MAX_SEQUENCE: Final = 2**64 - 1
EARLIEST: Final = "-2"
LATEST: Final = "-1"
"""What stands for the ends of a stream in JSON, as in Spark's Kafka source."""


def before(id: str) -> Place:
    """Return the place before the entry ``id``, ``milliseconds`` or ``milliseconds-number``."""
    order = Place(id).order
    if order[1] > 0:
        return Place(f"{order[0]}-{order[1] - 1}")
    return Place(f"{order[0] - 1}-{MAX_SEQUENCE}") if order[0] > 0 else Place()


@dataclass(frozen=True)
class Bounds:
    """Where each stream is read from, and up to where: None for its ends. Ids in ``until`` are not read any more."""

    start: dict[str, str | None] = field(default_factory=dict)
    until: dict[str, str | None] = field(default_factory=dict)
    since: str | None = None
    """For streams that ``start`` does not name."""
    end: str | None = None
    from_the_end: bool = False
    namespaces: Sequence[str] = ()
    """Names and patterns: others are not wanted. Empty: all are."""
    events: Sequence[str] = ()
    """Kinds of events: others are not wanted. Empty: all are."""

    @classmethod
    def of(cls, options: Options) -> "Bounds":
        """Read the options. A timestamp goes before offsets, as in Spark's Kafka source. Raise ``WrongOption``."""
        word, start = _offsets(options, "startingOffsets", "earliest")
        last, until = _offsets(options, "endingOffsets", "latest")
        if last == "earliest" or EARLIEST in until.values():
            raise options.wrong("endingOffsets", "expected latest, or JSON with ids by stream")
        since, end = (_time(options, name) for name in ("startingTimestamp", "endingTimestamp"))
        if since is not None:
            word, start = "earliest", {}
        return cls(
            start,
            {} if end is not None else until,
            since,
            end,
            word == "latest",
            options.names("namespaces", ""),
            options.names("events", ""),
        )

    def start_of(self, key: str) -> Place | None:
        """Return the place after which ``key`` is read; None: at its end."""
        found = self.start.get(key, self.since) if key in self.start or not self.from_the_end else LATEST
        if found == LATEST:
            return None
        return Place() if found in (None, EARLIEST) else before(str(found))

    def end_of(self, key: str) -> Place | None:
        """Return the last place of ``key`` that is read; None: up to its end."""
        found = self.until.get(key, self.end)
        return None if found in (None, LATEST) else before(str(found))

    def wants(self, namespace: str) -> bool:
        """Return whether rows of ``namespace`` are wanted."""
        return not self.namespaces or any(fnmatchcase(namespace, each) for each in self.namespaces)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are wanted; those without a kind say what was malformed or lost, and stay."""
        if not self.events:
            return batch
        kinds = batch.column("event")
        return batch.filter(pc.or_(pc.is_in(kinds, pa.array(self.events)), pc.is_null(kinds)))


def _time(options: Options, name: str) -> str | None:
    return str(options.whole(name, 0, least=0, most=2**53)) if options.text(name, "") else None


def _offsets(options: Options, name: str, default: str) -> tuple[str, dict[str, str | None]]:
    """Return the word ``earliest`` or ``latest``, and ids by stream."""
    text = options.text(name, default)
    if text.lower() in ("earliest", "latest"):
        return text.lower(), {}
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError
        ids = {str(key): str(value) for key, value in found.items()}
        for id in ids.values():
            if id not in (EARLIEST, LATEST):
                _ = Place(id).order
    except ValueError:
        example = '{"orders": "1767225600123-0", "others": -2}'
        raise options.wrong(name, f"{text!r}: expected earliest | latest | JSON such as {example}") from None
    return default, dict(ids)
