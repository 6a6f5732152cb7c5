"""Streams of anybody: one row an entry.

The server counts the entries that were ever added to a stream (``entries-added``, Redis 7). The number of a place is
that count less what comes after it: so between two places there are as many entries as their numbers differ, and fewer
only if some were trimmed or deleted meanwhile.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType
from redis.exceptions import ResponseError

from penstock.errors import DataLost, WrongOption
from penstock.spark.decode import RawEntry
from penstock.spark.options import Options, exchange
from penstock.spark.sources.pages import Entries, named
from penstock.spark.sources.places import Place, Range

ABSENT: Final = "no such key"
COLUMNS: Final = "key string, entry string, fields map<string,string>"


class Raw(Entries):
    """Entries as they are; values as text, or as bytes where the user's schema says so."""

    def __init__(self, options: Options, schema: StructType | None) -> None:
        super().__init__(options)
        given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema or ())
        self._bytes = given == COLUMNS.replace("string>", "binary>")
        if schema is not None and given != COLUMNS and not self._bytes:
            raise WrongOption(f"redis-stream: schema: {given}: expected {COLUMNS} (or map<string,binary>)")
        self._trimmed: dict[str, int] = {}
        """By stream, when its end was last looked for: how many entries had been there and were not any more."""

    def ends(self, keys: Sequence[str]) -> dict[str, Place]:
        found = {}
        replies = exchange(self.redis, [("XINFO", "STREAM", key) for key in keys]) if keys else []
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, ResponseError) and ABSENT in str(reply):
                continue
            if isinstance(reply, ResponseError):
                raise named(reply, key)
            told: dict[bytes, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
            added = told.get(b"entries-added")
            if added is not None:
                self._trimmed[key] = added - told[b"length"]
            if last := told[b"last-entry"]:
                found[key] = Place(last[0].decode(), added)
        return found

    def as_far_as(self, key: str, start: Place, end: Place, most: int) -> tuple[Place, int]:
        known = [number for number in (start.number, self._trimmed.get(key)) if number is not None]
        before = max(known, default=None)
        if before is not None and end.number is not None and 0 <= end.number - before <= most:
            return end, end.number - before
        last, entries = self.walk(key, start, end, most)
        if last is None or entries < most or last[0].decode() == end.id:
            return end, entries
        return Place(last[0].decode(), None if before is None else before + entries), entries

    def ranges(self, key: str, start: Place, end: Place, parts: int) -> list[Range]:
        """One: nothing tells where to cut."""
        return [Range(key, start, end)]

    def weight(self, entry: RawEntry) -> int:
        return 1

    def rows(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Its entries. Raises ``DataLost`` where some are gone, or tells the log."""
        found, last = 0, part.start
        for entries in self.pages(part):
            found, last = found + len(entries), Place(entries[-1][0].decode())
            yield self._columns(part.key, entries)
        if part.start.number is not None and part.end.number is not None:
            lost = part.end.number - part.start.number - found
            if lost > 0:
                self._lost(part, f"{lost} entries")
        elif last.order < part.end.order:
            self._lost(part, "entries")

    def _columns(self, key: str, entries: list[RawEntry]) -> pa.RecordBatch:
        fields = [dict(zip(words[::2], words[1::2], strict=True)) for _, words in entries]
        offsets = [0]
        for each in fields:
            offsets.append(offsets[-1] + len(each))
        names = _text([name for each in fields for name in each])
        values = [value for each in fields for value in each.values()]
        return pa.RecordBatch.from_arrays(
            [
                pa.repeat(key, len(entries)),
                _text([name for name, _ in entries]),
                pa.MapArray.from_arrays(
                    offsets, names, pa.array(values, pa.binary()) if self._bytes else _text(values)
                ),
            ],
            ["key", "entry", "fields"],
        )

    def _lost(self, part: Range, which: str) -> None:
        told = (
            f"{part.key}: {which} between {part.start.id} and {part.end.id} are gone: they were trimmed or deleted "
            "before they were read"
        )
        if self._fails:
            raise DataLost(f"{told}. Keep more of them, and go on without these: failOnDataLoss=false")
        logging.getLogger(__name__).warning("redis-stream: %s; going on without them", told)


def _text(words: list[bytes]) -> pa.Array:
    """What is not UTF-8 in them as ``\\xff``."""
    try:
        return pa.array(words, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([word.decode(errors="backslashreplace") for word in words], pa.string())
