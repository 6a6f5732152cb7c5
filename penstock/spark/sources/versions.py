"""Source for hashes, for queries: changed hashes, found by the number in a field.

Every writer sets the field ``versionField`` to a number that is higher than all before. A micro-batch has the hashes
whose number is in its range, as they are when they are read. One that changes meanwhile has a higher number then, and
comes in a later micro-batch. So each number comes once, and states that were overwritten before may not come at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError
from penstock.spark.options import Options, connect
from penstock.spark.sources.hashes import OPTIONS as BATCH_OPTIONS
from penstock.spark.sources.hashes import HashTable, replies_of
from penstock.spark.sources.tables import Keys
from penstock.spark.staging import MAX_KEYS, chunks

OPTIONS: Final = BATCH_OPTIONS | {"versionField", "startingOffsets", "maxOffsetsPerTrigger"}
MAX_VERSION: Final = 2**63 - 1


@dataclass(frozen=True)
class Changed(Keys):
    """The keys that one task reads, each if its number is in the range of the micro-batch."""

    range: range


class VersionReader(HashTable, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches. Offsets are ``{"version": n}``, the highest number that has been read."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options("redis-hash", given, OPTIONS)
        super().__init__(options, schema)
        self._field = options.text("versionField")
        self._from_the_end = options.one_of("startingOffsets", "earliest", ("earliest", "latest")) == "latest"
        self._most = options.whole("maxOffsetsPerTrigger", 500_000)
        self._until = MAX_VERSION
        """With ``availableNow``: the highest number at the start."""
        self._found: dict[bytes, int] = {}
        """Numbers by key, when the last micro-batch was planned."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_found": {}}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = max(self._search().values(), default=0)

    def initialOffset(self) -> dict[str, int]:
        return {"version": max(self._search().values(), default=0) if self._from_the_end else 0}

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Return the highest number of the last search, so that the progress of a query shows how far behind it is."""
        return {"version": max(self._found.values())} if self._found else None

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the end of the next micro-batch, which is complete: two searches find it.

        A search may see a hash that was created meanwhile, and miss one with a lower number that was, too. The second
        search finds all numbers up to the highest one of the first.
        """
        self._found = self._search()
        highest = max(self._found.values(), default=0)
        if highest <= start["version"]:
            return start
        self._found = self._search()
        upto = min(highest, self._until)
        new = sorted(each for each in self._found.values() if start["version"] < each <= upto)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else len(new)
        return {"version": new[:most][-1] if new else start["version"]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        first, last = start["version"], end["version"]
        found = self._found or self._search()  # empty after a restart
        keys = sorted((number, key) for key, number in found.items() if first < number <= last)
        return [Changed(part, range(first + 1, last + 1)) for part in self.shares([key for _, key in keys])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Changed)
        with connect(self._url) as redis:
            for keys in chunks(partition.keys, MAX_KEYS):
                yield self.batch_of(redis, keys, self._field, lambda key, at: self._number(key, at) in partition.range)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: hashes stay."""

    def _search(self) -> dict[bytes, int]:
        """Return the number of each hash that has one."""
        found: dict[bytes, int] = {}
        with connect(self._url) as redis:
            for keys in chunks(self.existing(redis), MAX_KEYS):
                replies = replies_of(redis, keys, [("HGET", key, self._field) for key in keys])
                found |= {key: self._number(key, text) for key, text in zip(keys, replies, strict=True) if text}
        return found

    def _number(self, key: bytes, text: bytes | str | None) -> int:
        """Return the number in ``text``, 0 if the hash has none. Raise ``PenstockError`` for any other text."""
        number = int(text) if text and text.isascii() and text.isdigit() else 0
        if text and not 0 < number <= MAX_VERSION:
            expected = f"a whole number, 1 to {MAX_VERSION}"
            raise PenstockError(f"redis-hash: {decoded(key)}: field {self._field}: {text!r}: expected {expected}")
        return number
