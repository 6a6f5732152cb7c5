"""The format ``redis-stream``: entries of Redis streams; those of event streams as one row an event.

Where a query stands is in its own checkpoint, by stream and id; the server keeps no state of readers. The ends of a
micro-batch are entries that are there when it is planned, and nothing is ever added before them: it is the same
whenever it is read again. The numbers of events (docs/keys.md) tell what was trimmed before it was read.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from redis.exceptions import RedisError, ResponseError

from penstock.errors import DataLost, WrongType
from penstock.events import MOST
from penstock.spark.decode import SCHEMA, RawEntry, decoded
from penstock.spark.options import Connecting, Options

KNOWN: Final = frozenset(
    {"url", "keys", "maxEventsPerTrigger", "startingOffsets", "failOnDataLoss", "partitions", "discover"}
)
SUFFIX: Final = ":events"
MARKS: Final = ":marks"
PAGE: Final = 20_000
"""Events that are read at a time, about."""
ENTRIES: Final = 200
"""Entries of the first page, when nobody knows how much is in one."""
SPLIT: Final = 50_000
"""Events of a stream that are worth a task of their own."""
PATIENCE: Final = 6
"""How often a page is asked for again where the server is away: some 6 seconds."""
DDL: Final = (
    "namespace string, entry string, place int, number long, event string, id string, xid string, at timestamp, "
    "queue string, service string, attempt int, seconds double, malformed string"
)


@dataclass(frozen=True)
class Place:
    """An entry up to which a stream is read, and the number of its last event; None where it does not tell."""

    id: str = "0-0"
    number: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        milliseconds, _, sequence = self.id.partition("-")
        return int(milliseconds), int(sequence or 0)

    @classmethod
    def of(cls, entry: RawEntry) -> "Place":
        numbers = numbers_of(entry)
        return cls(entry[0].decode(), numbers[1] if numbers else None)


def numbers_of(entry: RawEntry) -> tuple[int, int] | None:
    """Of its first and last event."""
    words = dict(zip(entry[1][::2], entry[1][1::2], strict=False))
    try:
        first, count = int(words[b"first"]), int(words[b"count"])
    except (KeyError, ValueError):
        return None
    return (first, first + count - 1) if 1 <= count <= MOST else None


@dataclass(frozen=True)
class Range(InputPartition):
    """What one task reads: the entries of ``key`` after ``start`` up to and with ``end``."""

    key: str
    start: Place
    end: Place


class RedisStream(DataSource):
    """See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "redis-stream"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> "BatchReader":
        return BatchReader(self.options)

    def streamReader(self, schema: StructType) -> "StreamReader":
        return StreamReader(self.options)


class _Reader(Connecting):
    """What both kinds of reading have in common."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = Options("redis-stream", given, KNOWN)
        super().__init__(options.url())
        self._names = [name for name in options.text("keys").split(",") if name]
        self._most = options.whole("maxEventsPerTrigger", 500_000)
        self._from_the_end = options.one_of("startingOffsets", "earliest", ("earliest", "latest")) == "latest"
        self._fails = options.truth("failOnDataLoss", True)
        self._parts = options.whole("partitions", 2, most=1_000)
        self._discover = options.whole("discover", 30, least=0)
        self._found: set[str] = set()
        self._looked = -float("inf")

    def keys(self) -> list[str]:
        """The streams that there are; patterns are looked for in all keys, every ``discover`` seconds."""
        patterns = [name for name in self._names if any(letter in name for letter in "*?[")]
        if patterns and time.monotonic() - self._looked >= self._discover:
            for key in self.redis.scan_iter(count=10_000, _type="stream"):
                if any(fnmatchcase(key.decode(errors="surrogateescape"), pattern) for pattern in patterns):
                    self._found.add(key.decode(errors="surrogateescape"))
            self._looked = time.monotonic()
        return sorted(self._found.union(set(self._names) - set(patterns)))

    def ends(self, keys: Sequence[str]) -> dict[str, Place]:
        """The newest entry of each that has one."""
        with self.redis.pipeline(transaction=False) as wire:
            for key in keys:
                wire.execute_command("XREVRANGE", key, "+", "-", "COUNT", 1)
            replies = wire.execute(raise_on_error=False)
        found = {}
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, ResponseError):
                raise _named(reply, key)
            if isinstance(reply, Exception):
                raise reply
            if reply:
                found[key] = Place.of(reply[0])
        return found

    def ranges(self, key: str, start: Place, end: Place) -> list[Range]:
        """Parts of about the same number of events, cut at marks."""
        cuts = [start]
        if end.number is not None:
            number = start.number if start.number is not None else self._number_before(key)
            if number is not None and end.number - number >= SPLIT:
                for part in range(1, self._parts):
                    wanted = number + (end.number - number) * part // self._parts
                    cut = self.mark(key, wanted, after=cuts[-1])
                    cuts += [cut] if cut and cut.order < end.order else []
        return [Range(key, after, upto) for after, upto in zip(cuts, [*cuts[1:], end], strict=True)]

    def _number_before(self, key: str) -> int | None:
        """The event before the oldest that is there."""
        oldest = self.redis.execute_command("XRANGE", key, "-", "+", "COUNT", 1)
        numbers = numbers_of(oldest[0]) if oldest else None
        return numbers[0] - 1 if numbers else None

    def mark(self, key: str, number: int, after: Place) -> Place | None:
        """The last entry that a mark leads to, beginning with event ``number`` at most, if it comes ``after``."""
        found = self.redis.zrevrangebyscore(key + MARKS, number, "-inf", start=0, num=1)
        if not found or Place(found[0].decode()).order <= after.order:
            return None
        entries = self.redis.execute_command("XRANGE", key, found[0], found[0])
        return Place.of(entries[0]) if entries else None

    def events(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Its events. Raises ``DataLost`` where some are gone, or tells of it in a row."""
        namespace = part.key.removesuffix(SUFFIX)
        place = part.start
        for entries in self._pages(part):
            for batch in decoded(namespace, entries):
                yield from self._unbroken(part.key, place, batch)
                place = _last_of(batch, place)
        if place.order < part.end.order:
            yield from self._lost(part.key, place, None if part.end.number is None else part.end.number + 1)

    def _unbroken(self, key: str, before: Place, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """``batch``, and what is missing before and in it."""
        numbers = batch.column("number")
        if numbers.null_count:
            yield batch
            return
        known = numbers.to_numpy()
        first = before.number + 1 if before.number is not None else known[0]
        gaps = np.flatnonzero(np.diff(known, prepend=first - 1) > 1)
        begin = 0
        for gap in gaps.tolist():
            yield batch.slice(begin, gap - begin)
            last = Place(batch.column("entry")[gap - 1].as_py(), int(known[gap - 1])) if gap else before
            yield from self._lost(key, last, int(known[gap]))
            begin = gap
        yield batch.slice(begin)

    def _lost(self, key: str, before: Place, next_number: int | None) -> Iterator[pa.RecordBatch]:
        known = before.number is not None and next_number is not None
        which = f"events {before.number + 1} to {next_number - 1}" if known else "entries"  # type: ignore[operator]
        told = f"{key}: {which} after {before.id} are gone: they were trimmed before they were read"
        if self._fails:
            raise DataLost(f"{told}. Keep more of them (eventCapacity), and go on without these: failOnDataLoss=false")
        row = {"namespace": key.removesuffix(SUFFIX), "entry": before.id, "place": -1}
        yield pa.RecordBatch.from_pylist([{**row, "malformed": json.dumps({"lost": told})}], schema=SCHEMA)

    def _pages(self, part: Range) -> Iterator[list[RawEntry]]:
        """All entries of ``part``; the next ones are under way while those before them are decoded."""
        count, after, upto = ENTRIES, part.start.id, part.end.id
        connection, asked = None, False
        try:
            failures = 0
            while True:
                try:
                    if connection is None:
                        connection = self.redis.connection_pool.get_connection()
                    if not asked:
                        connection.send_command("XRANGE", part.key, f"({after}", upto, "COUNT", count)
                    entries = connection.read_response()
                    failures, asked = 0, False
                except ResponseError as error:
                    raise _named(error, part.key) from None
                except RedisError:
                    failures += 1
                    if failures > PATIENCE:
                        raise
                    time.sleep(0.05 * 2**failures)
                    if connection:
                        connection.disconnect()
                    asked = False
                    continue
                if not entries:
                    return
                after = entries[-1][0].decode()
                if more := len(entries) == count and after != upto:
                    numbers = numbers_of(entries[-1])
                    each = numbers[1] - numbers[0] + 1 if numbers else 1
                    count = max(PAGE // each, 1)
                    with suppress(RedisError):  # asked for again, when its turn comes
                        connection.send_command("XRANGE", part.key, f"({after}", upto, "COUNT", count)
                        asked = True
                yield entries
                if not more:
                    return
        finally:
            if connection:
                connection.disconnect()
                self.redis.connection_pool.release(connection)


class BatchReader(_Reader, DataSourceReader):
    """What is there when the job is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        ends = self.ends(self.keys())
        return [each for key, end in ends.items() for each in self.ranges(key, Place(), end)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return self.events(partition) if isinstance(partition, Range) else iter(())  # Spark's word for no partition


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are a ``Place`` a stream."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self._until: dict[str, Place] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self.ends(self.keys())

    def initialOffset(self) -> dict[str, Any]:
        return _offset(self.ends(self.keys()) if self._from_the_end else {})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        places = _places(start)
        keys = sorted({*self.keys(), *places})
        ends = self.ends(keys)
        if self._until is not None:
            until = {key: end for key, end in self._until.items() if key in ends}
            ends = {key: min(ends[key], end, key=lambda place: place.order) for key, end in until.items()}
        behind = [key for key, end in ends.items() if end.order > places.get(key, Place()).order]
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else 2**62
        for done, key in enumerate(behind):
            share = max(left // (len(behind) - done), 1)
            before = places.get(key, Place())
            places[key], events = self._as_far_as(key, before, ends[key], share)
            left = max(left - events, 0)
        return _offset(places)

    def _as_far_as(self, key: str, start: Place, end: Place, most: int) -> tuple[Place, int]:
        """The last place up to which there are about ``most`` events, and how many there are."""
        number = start.number if start.number is not None else self._number_before(key)
        if number is not None and end.number is not None and end.number >= number:
            if end.number - number <= most:
                return end, end.number - number
            cut = self.mark(key, number + most, after=start)
            if cut and cut.number is not None and cut.order < end.order:
                return cut, max(cut.number - number, 0)
        return self._walk(key, start, end, most)

    def _walk(self, key: str, start: Place, end: Place, most: int) -> tuple[Place, int]:
        """The same where nothing tells how far it is: by reading."""
        events, place = 0, start
        while events < most and place.order < end.order:
            page = self.redis.execute_command("XRANGE", key, f"({place.id}", end.id, "COUNT", min(most - events, PAGE))
            if not page:
                return end, events
            for entry in page:
                numbers = numbers_of(entry)
                events += numbers[1] - numbers[0] + 1 if numbers else 1
                place = Place.of(entry)
                if events >= most:
                    break
        return place, events

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before = _places(start)
        return [
            each
            for key, upto in _places(end).items()
            if upto.order > before.get(key, Place()).order
            for each in self.ranges(key, before.get(key, Place()), upto)
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return self.events(partition) if isinstance(partition, Range) else iter(())  # Spark's word for no partition

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: what was read stays in the stream until it is trimmed."""


def _last_of(batch: pa.RecordBatch, before: Place) -> Place:
    """Where ``batch`` ends; what is no event may tell its numbers all the same."""
    (row,) = batch.slice(batch.num_rows - 1).to_pylist()
    words = json.loads(row["malformed"] or "{}")
    told = numbers_of((b"", [word.encode() for pair in words.items() for word in pair]))
    return Place(row["entry"], row["number"] or (told[1] if told else before.number))


def _offset(places: Mapping[str, Place]) -> dict[str, Any]:
    return {key: asdict(place) for key, place in sorted(places.items())}


def _places(offset: Mapping[str, Any]) -> dict[str, Place]:
    return {key: Place(**place) for key, place in offset.items()}


def _named(error: ResponseError, key: str) -> Exception:
    wrong = str(error).startswith("WRONGTYPE")
    return WrongType(f"{key} holds something else, expected a stream") if wrong else error
