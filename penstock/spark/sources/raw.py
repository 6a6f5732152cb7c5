"""Source for raw entries of any stream: one row for each entry.

The server counts all entries that were added to a stream (``entries-added``, Redis 7). The number of a place is that
count without the entries after it. So the numbers of two places differ by the number of entries between them, unless
entries were trimmed or deleted.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType
from redis.exceptions import ResponseError

from penstock.base.errors import DataLost, WrongOption
from penstock.core.raw_connection import Command
from penstock.spark.decode import END_OF_TIME, RawEntry
from penstock.spark.options import Options, exchange
from penstock.spark.sources.pages import Entries, with_key
from penstock.spark.sources.places import ORDER, Place, Range, numbers_of
from penstock.spark.sources.splitting import cuts

SPLIT: Final = 50_000
"""Minimum number of entries that are split among several tasks."""
ABSENT: Final = "no such key"
FORMER_COLUMNS: Final = (
    "key string, entry string, fields map<string,string>",
    "key string, entry string, timestamp timestamp, fields map<string,string>",
)
"""What older programs give as their schema."""
RAW_COLUMNS: Final = f"{FORMER_COLUMNS[-1]}, {', '.join(f'{name} bigint' for name in ORDER)}"


@dataclass(frozen=True)
class State:
    """What ``XINFO STREAM`` says of a stream; an older server knows no numbers."""

    length: int = 0
    added: int | None = None
    first: str = ""
    last: str = ""
    deleted: str = "0-0"
    """The greatest id that XDEL has deleted; trimming is not counted."""

    @classmethod
    def of(cls, reply: Any) -> "State":
        """Parse the reply; an error means that no such stream exists."""
        if isinstance(reply, Exception):
            return cls()
        info: dict[bytes, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
        first, last = (info[name][0].decode() if info[name] else "" for name in (b"first-entry", b"last-entry"))
        deleted = info.get(b"max-deleted-entry-id", b"0-0").decode()
        return cls(info[b"length"], info.get(b"entries-added"), first, last, deleted)

    @property
    def gone(self) -> int | None:
        """Return how many entries were ever trimmed or deleted."""
        return None if self.added is None else self.added - self.length

    def is_whole(self, start: Place, after: Place | None = None) -> bool:
        """Return True if nothing after ``after``, of what comes after ``start``, was trimmed or deleted before now.

        True, too, if that cannot be known, since ``start`` has no number.
        """
        if start.number is None or self.gone is None:
            return True
        if Place(self.deleted).order > start.order:
            return False
        return self.gone <= start.number or bool(after and self.first and Place(self.first).order <= after.order)


class Raw(Entries):
    """Reads entries without decoding events. Values are text, or bytes if the user's schema has binary."""

    def __init__(self, options: Options, schema: StructType | None) -> None:
        super().__init__(options)
        given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema or ())
        as_text = given.replace("binary>", "string>")
        self._bytes = as_text != given
        self._names = schema.names if schema else None
        if schema is not None and as_text not in (RAW_COLUMNS, *FORMER_COLUMNS):
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
            state = State.of(reply)
            if state.gone is not None:
                self._trimmed[key] = state.gone
            if state.last:
                found[key] = Place(state.last, state.added)
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
        """Divide a range of ``SPLIT`` entries or more into pieces with about the same number of entries.

        A range whose entries may have been trimmed or deleted already is not divided, so that they can be counted.
        """
        state = self._state(key)
        known = [end.number - start.number] if start.number is not None and end.number is not None else []
        size = min([state.length, *known])
        if parts < 2 or size < SPLIT or not state.is_whole(start):
            return [Range(key, start, end)]
        places = [start, *map(Place, cuts(self.redis, key, start, end, parts, size)), end]
        if len(places) == 2:
            return [Range(key, start, end)]
        return [Range(key, *pair, since=start, is_last=pair[1] is end) for pair in pairwise(places)]

    def weight(self, entry: RawEntry) -> int:
        return 1

    def rows(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Yield the entries of ``part``. For lost entries raise ``DataLost`` or log a warning.

        The entries of a piece cannot be counted. Trimming removes the oldest: so a page is whole if that has not passed
        the entry before the page, or the beginning of the whole range, when the page has been read.
        """
        found, last, warned = 0, part.start, False
        others: list[Command] = [("XINFO", "STREAM", part.key)] if part.since else []
        for entries, replies in self.pages_with(part, others):
            if part.since and not warned and not State.of(replies[0]).is_whole(part.since, last):
                self._lost(part, "entries")
                warned = True
            found, last = found + len(entries), Place(entries[-1][0].decode())
            yield self._columns(part.key, entries)
        if part.since:
            if not warned and last.order < part.end.order and (part.is_last or part.since.number is not None):
                self._lost(part, "entries")
        elif part.start.number is not None and part.end.number is not None:
            lost = part.end.number - part.start.number - found
            if lost > 0:
                self._lost(part, f"{lost} entries")
        elif last.order < part.end.order:
            self._lost(part, "entries")

    def _state(self, key: str) -> "State":
        return State.of(exchange(self.redis, [("XINFO", "STREAM", key)])[0])

    def _columns(self, key: str, entries: list[RawEntry]) -> pa.RecordBatch:
        ids, fields = _text([id for id, _ in entries]), [words for _, words in entries]
        offsets, names, values = _alike(fields) or _unlike(fields)
        order = dict(zip(ORDER, numbers_of(ids), strict=True))
        columns = {
            "key": pa.repeat(key, len(entries)),
            "entry": ids,
            "timestamp": _times(order["entry_ms"]),
            "fields": pa.MapArray.from_arrays(
                offsets, names, pa.array(values, pa.binary()) if self._bytes else _text(values)
            ),
            **order,
        }
        wanted = self._names or [*columns]
        return pa.RecordBatch.from_arrays([columns[name] for name in wanted], wanted)

    def _lost(self, part: Range, which: str) -> None:
        problem = (
            f"{part.key}: {which} between {part.start.id} and {part.end.id} are gone: they were trimmed or deleted "
            "before they were read"
        )
        if self._fails:
            raise DataLost(f"{problem}. Keep more of them, and go on without these: failOnDataLoss=false")
        logging.getLogger(__name__).warning("redis-stream: %s; going on without them", problem)


Columns = tuple[pa.Array, pa.Array, list[bytes]]
"""Where the fields of each entry begin, and the names and values of all."""


def _alike(fields: Sequence[list[bytes]]) -> Columns | None:
    """Return the columns of entries whose fields have the same names in the same order, as most writers do; or None."""
    names, many = fields[0][::2], len(fields)
    words = [*chain.from_iterable(fields)]
    if {*map(len, fields)} != {2 * len(names)} or len({*names}) < len(names) or words[::2] != names * many:
        return None
    offsets = pa.array(np.arange(many + 1, dtype=np.int32) * len(names))
    places = pa.array(np.tile(np.arange(len(names), dtype=np.int32), many))
    return offsets, _text(names).take(places), words[1::2]


def _unlike(fields: Sequence[list[bytes]]) -> Columns:
    """Return the columns of any entries; of a name that comes twice in one, the last value."""
    found = [dict(zip(words[::2], words[1::2], strict=True)) for words in fields]
    offsets = pa.array([0, *accumulate(map(len, found))], pa.int32())
    names = _text([name for each in found for name in each])
    return offsets, names, [value for each in found for value in each.values()]


def _times(milliseconds: pa.Array) -> pa.Array:
    """Return the times in ids; null after the end of time."""
    known = pc.if_else(pc.less(milliseconds, END_OF_TIME), milliseconds, pa.scalar(None, pa.int64()))
    return pc.multiply(known, 1000).cast(pa.timestamp("us", tz="UTC"))


def _text(words: Sequence[bytes]) -> pa.Array:
    """Return ``words`` as text; bytes that are not UTF-8 become ``\\xff``."""
    try:
        return pa.array(words, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([word.decode(errors="backslashreplace") for word in words], pa.string())
