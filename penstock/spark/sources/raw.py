"""Source for raw entries of any stream: one row for each entry.

The server counts all entries that were added to a stream (``entries-added``, Redis 7). The number of a place is that
count without the entries after it. So the numbers of two places differ by the number of entries between them, unless
entries were trimmed or deleted.
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
from penstock.spark.sources.pages import Entries, with_key
from penstock.spark.sources.places import Place, Range

ABSENT: Final = "no such key"
RAW_COLUMNS: Final = "key string, entry string, fields map<string,string>"


class Raw(Entries):
    """Reads entries without decoding events. Values are text, or bytes if the user's schema has binary."""

    def __init__(self, options: Options, schema: StructType | None) -> None:
        super().__init__(options)
        given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema or ())
        self._bytes = given == RAW_COLUMNS.replace("string>", "binary>")
        if schema is not None and given != RAW_COLUMNS and not self._bytes:
            raise WrongOption(f"redis-stream: schema: {given}: expected {RAW_COLUMNS} (or map<string,binary>)")
        self._trimmed: dict[str, int] = {}
        """By stream, when ``ends`` was called last: how many entries had been trimmed or deleted."""

    def ends(self, keys: Sequence[str]) -> dict[str, Place]:
        found = {}
        replies = exchange(self.redis, [("XINFO", "STREAM", key) for key in keys]) if keys else []
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, ResponseError) and ABSENT in str(reply):
                continue
            if isinstance(reply, ResponseError):
                raise with_key(reply, key)
            info: dict[bytes, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
            added = info.get(b"entries-added")
            if added is not None:
                self._trimmed[key] = added - info[b"length"]
            if last := info[b"last-entry"]:
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
        """Return one range: raw streams have no marks to divide at."""
        return [Range(key, start, end)]

    def weight(self, entry: RawEntry) -> int:
        return 1

    def rows(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Yield the entries of ``part``. For lost entries raise ``DataLost`` or log a warning."""
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
        problem = (
            f"{part.key}: {which} between {part.start.id} and {part.end.id} are gone: they were trimmed or deleted "
            "before they were read"
        )
        if self._fails:
            raise DataLost(f"{problem}. Keep more of them, and go on without these: failOnDataLoss=false")
        logging.getLogger(__name__).warning("redis-stream: %s; going on without them", problem)


def _text(words: list[bytes]) -> pa.Array:
    """Return ``words`` as text; bytes that are not UTF-8 become ``\\xff``."""
    try:
        return pa.array(words, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([word.decode(errors="backslashreplace") for word in words], pa.string())
