"""Base of sources for keys of one type: each task searches them, and reads those between two names."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from redis import Redis

from penstock.base.encoding import encoded
from penstock.spark.options import Options, connect
from penstock.spark.staging import MAX_KEYS, chunks


@dataclass(frozen=True)
class Keys(InputPartition):
    """The keys that one task reads."""

    keys: list[bytes]


@dataclass(frozen=True)
class Names(InputPartition):
    """The keys that one task reads: from ``first`` on, and those before ``end``; None: all the others."""

    first: bytes
    end: bytes | None


class Table:
    """Base of the readers of jobs and of queries."""

    def __init__(self, options: Options, type_: str) -> None:
        self._url = options.url()
        self._type = type_
        self._names = options.names("keys")
        self._prefix = encoded(options.text("keyPrefix", ""))
        self._parts = options.whole("partitions", options.whole("minPartitions", 1, most=1_000), most=1_000)

    def existing(self, redis: "Redis", first: bytes = b"", end: bytes | None = None) -> list[bytes]:
        """Return the keys between two names, sorted: patterns are searched for keys of the type."""

        def within(key: bytes) -> bool:
            return first <= key and (end is None or key < end)

        patterns = [name for name in self._names if any(letter in name for letter in "*?[")]
        found = {self._prefix + name.encode() for name in self._names if name not in patterns}
        for pattern in patterns:
            match = _literal(self._prefix) + pattern.encode()
            found.update(filter(within, redis.scan_iter(match=match, count=MAX_KEYS, _type=self._type)))
        return sorted(filter(within, found))

    def shares(self, keys: list[bytes]) -> list[list[bytes]]:
        """Divide ``keys`` among the tasks."""
        cuts = [len(keys) * part // self._parts for part in range(self._parts + 1)]
        return [keys[first:end] for first, end in pairwise(cuts)]


class TableReader(Table, DataSourceReader):
    """Reads the keys that exist when a task begins; one that is gone when it is read gives no row.

    Spark plans a frame only once, for all of its actions: so that divides the names, and not the keys.
    """

    def partitions(self) -> Sequence[InputPartition]:
        if self._parts == 1:
            return [Names(b"", None)]
        with connect(self._url) as redis:
            firsts = [share[0] for share in self.shares(self.existing(redis)) if share]
        return [Names(first, end) for first, end in pairwise((b"", *firsts[1:], None)) if first is not None]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Names)
        with connect(self._url) as redis:
            for keys in chunks(self.existing(redis, partition.first, partition.end), MAX_KEYS):
                yield from self.rows(redis, keys)

    @abstractmethod
    def rows(self, redis: "Redis", keys: list[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``keys``, at most ``MAX_KEYS``."""


def _literal(prefix: bytes) -> bytes:
    """Return the glob-style pattern of exactly ``prefix``."""
    return b"".join(b"\\" + bytes((each,)) if each in b"*?[]\\^-" else bytes((each,)) for each in prefix)
