"""Where reading begins and ends: options as in Spark's Kafka source, and filters that a batch job pushes down."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from penstock.spark.options import Options
from penstock.spark.sources.places import Place

MAX_SEQUENCE: Final = 2**64 - 1
EARLIEST: Final = "-2"
LATEST: Final = "-1"
"""What stands for the ends of a stream in JSON, as in Spark's Kafka source."""
LATER_MS: Final = 600_000
"""How much later than its event an entry may be: after a clock was set back, ids go on from the last one."""
CHOSEN: Final = ("event", "id", "namespace")
"""Columns of text by which rows are chosen before they go to Spark."""


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
    chosen: dict[str, frozenset[str]] = field(default_factory=dict)
    """Values by column: other rows are not wanted."""

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
        return cls(start, {} if end is not None else until, since, end, word == "latest")

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

    def pushed(self, filters: Iterable[Filter]) -> "Bounds":
        """Return these bounds, narrowed by ``filters``, all of which hold. Spark applies the filters again."""
        bounds = self
        for each in filters:
            column = getattr(each, "attribute", ("",))[0]
            if column == "at" and isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo):
                bounds = bounds._narrowed(since=_milliseconds(each.value))
            if column == "at" and isinstance(each, LessThan | LessThanOrEqual | EqualTo):
                bounds = bounds._narrowed(end=_milliseconds(each.value) + LATER_MS)
            if column in CHOSEN and isinstance(each, EqualTo | In):
                values = frozenset(map(str, each.value if isinstance(each, In) else (each.value,)))
                known = bounds.chosen.get(column)
                chosen = bounds.chosen | {column: values if known is None else known & values}
                bounds = replace(bounds, chosen=chosen)
        return bounds

    def _narrowed(self, *, since: int | None = None, end: int | None = None) -> "Bounds":
        """Return these bounds with a later start or an earlier end (ms) where no stream has its own."""
        if since is not None and not self.start and (self.since is None or Place(self.since).order < (since, 0)):
            return replace(self, since=str(max(since, 0)))
        if end is not None and not self.until and (self.end is None or Place(self.end).order > (end, 0)):
            return replace(self, end=str(max(end, 0)))
        return self

    def wants(self, namespace: str) -> bool:
        """Return whether rows of ``namespace`` are wanted."""
        return namespace in self.chosen.get("namespace", (namespace,))

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are wanted; those without a kind say what was malformed or lost, and stay."""
        wanted = {name: pa.array(sorted(values)) for name, values in self.chosen.items() if name != "namespace"}
        for batch in batches:
            if wanted:
                mask = None
                for name, values in wanted.items():
                    one = pc.is_in(batch.column(name), value_set=values)
                    mask = one if mask is None else pc.and_(mask, one)
                batch = batch.filter(mask)
            if batch.num_rows:
                yield batch


def _milliseconds(value: Any) -> int:
    given: datetime = value if value.tzinfo else value.replace(tzinfo=UTC)
    return int(given.timestamp() * 1000)


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
