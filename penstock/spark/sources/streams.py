"""Source for streams: readers plan micro-batches between entries, and tasks read the parts.

The position of a query is in its own checkpoint, by stream and id; the server keeps no state of readers. A micro-batch
ends with entries that exist when it is planned, and nothing is ever added before them. So a batch that is read again is
the same.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import WrongOption
from penstock.spark.options import Options
from penstock.spark.sources.bounds import LATEST, Bounds
from penstock.spark.sources.events import SUFFIX, Events
from penstock.spark.sources.pages import Entries
from penstock.spark.sources.places import Place, Task, offset_of, places_of
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
        *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    }
)


def is_raw(options: Options) -> bool:
    return options.one_of("entries", "events", ("events", "raw")) == "raw"


class _Reader:
    """Base of both readers."""

    def __init__(self, given: Mapping[str, str], schema: StructType | None = None) -> None:
        options = Options("redis-stream", given, OPTIONS)
        self._entries: Entries = Raw(options, schema) if is_raw(options) else Events(options)
        self._names = [name for name in options.text("keys").split(",") if name]
        self._most = options.whole("maxOffsetsPerTrigger", 500_000)
        self._tasks = options.whole("partitions", options.whole("minPartitions", 2, most=1_000), most=1_000)
        self._bounds = Bounds.of(options)
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
        return sorted(self._found.union(set(self._names) - set(patterns)))

    def ends(self) -> dict[str, Place]:
        return self._entries.ends(self.keys())

    def tasks(self, bounds: Mapping[str, tuple[Place, Place]]) -> Sequence[InputPartition]:
        """Divide the ranges of all streams among tasks, at most ``partitions``: each task costs about 0.1 s."""
        parts = -(-self._tasks // max(len(bounds), 1))
        ranges = [each for key, ends in bounds.items() for each in self._entries.ranges(key, *ends, parts)]
        return [Task(ranges[place :: self._tasks]) for place in range(min(self._tasks, len(ranges)))]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        for each in partition.ranges if isinstance(partition, Task) else ():  # Spark passes None for no partition
            yield from self._bounds.rows(self._entries.rows(each))

    def starts(self, ends: Mapping[str, Place]) -> dict[str, Place]:
        """Return the place after which each stream is read, by the options. Raise ``WrongOption`` for no events."""
        if isinstance(self._entries, Events) and (foreign := self._entries.foreign(sorted(ends))):
            named = [key for key in foreign if key in self._names]
            if named or len(foreign) == len(ends):
                raise WrongOption(
                    f"redis-stream: {', '.join(named or foreign)}: its entries are no events: read them with the "
                    "option entries=raw"
                )
        found = {key: self._bounds.start_of(key) for key in ends}
        return {key: ends[key] if start is None else self._entries.existing(key, start) for key, start in found.items()}


class BatchReader(_Reader, DataSourceReader):
    """Reads what the streams hold when the job is planned."""

    def __init__(self, given: Mapping[str, str], schema: StructType | None = None) -> None:
        super().__init__(given, schema)
        if self._bounds.from_the_end or LATEST in self._bounds.start.values():
            raise WrongOption("redis-stream: option startingOffsets: a batch that begins at the end reads nothing")

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read less: see ``Bounds.pushed``. Spark applies all filters again."""
        if isinstance(self._entries, Events):
            self._bounds = self._bounds.pushed(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        ends = {key: end for key, end in self.ends().items() if self._bounds.wants(key.removesuffix(SUFFIX))}
        starts = self.starts(ends)
        bounds = {}
        for key, end in ends.items():
            last = self._bounds.end_of(key)
            upto = end if last is None else self._entries.last_until(key, min(last, end, key=lambda each: each.order))
            if upto is not None and upto.order > starts[key].order:
                bounds[key] = starts[key], upto
        return self.tasks(bounds)


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
        starts = {key: start for key, start in self.starts(ends).items() if start != Place()}
        return offset_of({key: self._entries.numbered(key, Place(), start) for key, start in starts.items()})

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the ends of the streams, so that the progress of a query shows how far behind it is."""
        return offset_of(self.ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        places = places_of(start)
        ends = self._entries.ends(sorted({*self.keys(), *places}))
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
