"""Source for streams: readers plan micro-batches between entries, and tasks read the parts.

The position of a query is in its own checkpoint, by stream and id; the server keeps no state of readers. A micro-batch
ends with entries that exist when it is planned, and nothing is ever added before them. So a batch that is read again is
the same.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.base.errors import WrongOption
from penstock.spark.options import Options
from penstock.spark.sources.bounds import LATEST, Bounds
from penstock.spark.sources.events import SUFFIX, Events
from penstock.spark.sources.pages import Entries
from penstock.spark.sources.places import ORDER, Place, Range, Task, numbers_of, offset_of, places_of
from penstock.spark.sources.raw import Raw

OPTIONS: Final = frozenset(
    {
        *(
            "url",
            "keys",
            "entries",
            "maxOffsetsPerTrigger",
            "failOnDataLoss",
            "partitions",
            "minPartitions",
            "discover",
        ),
        *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "namespaces", "events"),
    }
)


def is_raw(options: Options) -> bool:
    return options.one_of("entries", "events", ("events", "raw")) == "raw"


class _Reader:
    """Base of both readers."""

    has_order = True
    """Whether events have the columns ``ORDER``."""

    def __init__(self, given: Mapping[str, str], schema: StructType | None = None) -> None:
        options = Options("redis-stream", given, OPTIONS)
        self._entries: Entries = Raw(options, schema) if is_raw(options) else Events(options)
        self._bounds = Bounds.of(options)
        if isinstance(self._entries, Raw) and (self._bounds.namespaces or self._bounds.events):
            raise options.wrong("entries", "raw entries are no events of namespaces: the options exclude each other")
        streams = ",".join(each + SUFFIX for each in self._bounds.namespaces)
        self._names = options.names("keys", streams or None)
        self._most = options.whole("maxOffsetsPerTrigger", 500_000)
        self._tasks = options.whole("partitions", options.whole("minPartitions", 2, most=1_000), most=1_000)
        self._discover = options.whole("discover", 30, least=0)
        self._found: set[str] = set()
        self._looked = -float("inf")

    def keys(self) -> list[str]:
        """Return the streams that exist; patterns are matched with all keys in UTF-8 every ``discover`` seconds."""
        patterns = [name for name in self._names if any(letter in name for letter in "*?[")]
        if patterns and time.monotonic() - self._looked >= self._discover:
            for key in self._entries.redis.scan_iter(count=10_000, _type="stream"):
                with suppress(UnicodeDecodeError):
                    name = key.decode()
                    if any(fnmatchcase(name, pattern) for pattern in patterns):
                        self._found.add(name)
            self._looked = time.monotonic()
        return self._wanted(self._found.union(set(self._names) - set(patterns)))

    def _wanted(self, keys: Iterable[str]) -> list[str]:
        return sorted(key for key in keys if self._bounds.wants(key.removesuffix(SUFFIX)))

    def ends(self) -> dict[str, Place]:
        return self._entries.ends(self.keys())

    def tasks(self, bounds: Mapping[str, tuple[Place, Place]]) -> list[Task]:
        """Divide the ranges of all streams among tasks, at most ``partitions``: each task costs about 0.1 s."""
        parts = -(-self._tasks // max(len(bounds), 1))
        ranges = [each for key, ends in bounds.items() for each in self._entries.ranges(key, *ends, parts)]
        return [Task(ranges[place :: self._tasks]) for place in range(min(self._tasks, len(ranges)))]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        for each in partition.ranges if isinstance(partition, Task) else ():  # Spark passes None for no partition
            for batch in self._entries.rows(each):
                if isinstance(self._entries, Events):
                    batch = self._bounds.rows(batch)
                if isinstance(self._entries, Events) and self.has_order:
                    for name, column in zip(ORDER, numbers_of(batch.column("entry")), strict=True):
                        batch = batch.append_column(name, column)
                if batch.num_rows:
                    yield batch

    def check(self, keys: Iterable[str]) -> None:
        """Raise ``WrongOption`` if one that is named, or all of ``keys``, hold no events."""
        found = sorted(keys)
        if isinstance(self._entries, Events) and (foreign := self._entries.foreign(found)):
            named = [key for key in foreign if key in self._names]
            if named or foreign == found:
                raise WrongOption(
                    f"redis-stream: {', '.join(named or foreign)}: its entries are no events: read them with the "
                    "option entries=raw"
                )

    def starts(self, ends: Mapping[str, Place]) -> dict[str, Place]:
        """Return the place after which each stream is read, by the options."""
        found = {key: self._bounds.start_of(key) for key in ends}
        return {key: ends[key] if start is None else self._entries.existing(key, start) for key, start in found.items()}


class BatchReader(_Reader, DataSourceReader):
    """Reads what the streams hold when its tasks begin, since Spark plans a frame only once, for all of its actions.

    What is planned is the division: each piece of a long stream, but for the last, ends at a certain entry.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType | None = None) -> None:
        super().__init__(given, schema)
        if self._bounds.from_the_end or LATEST in self._bounds.start.values():
            raise WrongOption("redis-stream: option startingOffsets: a batch that begins at the end reads nothing")

    def partitions(self) -> Sequence[InputPartition]:
        keys = self.keys()
        bounds = self._present(keys)
        self.check(self._entries.ends(keys))
        first, *others = self.tasks(bounds) or [Task([])]
        return [replace(first, planned=frozenset(bounds)), *others]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        new: set[str] = set()
        if partition.planned is not None:
            self._looked = -float("inf")
            new = set(self.keys()) - partition.planned
        bounds = self._present(sorted(new.union(each.key for each in partition.ranges)))
        ranges = []
        for each in (*partition.ranges, *(Range(key, Place(), Place()) for key in sorted(new))):
            if each.key in bounds:
                start, end = bounds[each.key]
                if each.is_first:
                    each = replace(each, start=start, since=each.since and start)
                ranges.append(replace(each, end=end) if each.is_last else each)
        return super().read(Task([each for each in ranges if each.end.order > each.start.order]))

    def _present(self, keys: Sequence[str]) -> dict[str, tuple[Place, Place]]:
        """Return where reading of each stream begins and ends by now, if there is something to read."""
        ends = self._entries.ends(keys)
        starts = self.starts(ends)
        bounds = {}
        for key, end in ends.items():
            last = self._bounds.end_of(key)
            upto = end if last is None else self._entries.last_until(key, min(last, end, key=lambda each: each.order))
            if upto is not None and upto.order > starts[key].order:
                bounds[key] = starts[key], upto
        return bounds


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches. Offsets are a ``Place`` for each stream."""

    def __init__(self, given: Mapping[str, str], schema: StructType | None = None) -> None:
        super().__init__(given, schema)
        for name in ("endingOffsets", "endingTimestamp"):
            if name.lower() in map(str.lower, given):
                raise WrongOption(f"redis-stream: option {name}: a query has no end: it is for batches only")
        self._until: dict[str, Place] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self.ends()

    def initialOffset(self) -> dict[str, Any]:
        ends = self.ends()
        self.check(ends)
        starts = {key: start for key, start in self.starts(ends).items() if start != Place()}
        return offset_of({key: self._entries.numbered(key, Place(), start) for key, start in starts.items()})

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the ends of the streams, so that the progress of a query shows how far behind it is."""
        return offset_of(self.ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        places = places_of(start)
        ends = self._entries.ends(self._wanted({*self.keys(), *places}))
        if self._until is not None:
            until = {key: end for key, end in self._until.items() if key in ends}
            ends = {key: min(ends[key], end, key=lambda place: place.order) for key, end in until.items()}
        behind = [key for key, end in ends.items() if end.order > places.get(key, Place()).order]
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else 2**62
        for done, key in enumerate(behind):
            share = max(left // (len(behind) - done), 1)
            before = places.get(key, Place())
            places[key], found = self._entries.as_far_as(key, before, ends[key], share)
            left = max(left - found, 0)
        return offset_of(places)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before = places_of(start)
        bounds = {key: (before.get(key, Place()), upto) for key, upto in places_of(end).items()}
        return self.tasks({key: ends for key, ends in bounds.items() if ends[1].order > ends[0].order})

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: entries stay in the stream until it is trimmed."""

    def stop(self) -> None:
        self._entries.stop()
