"""Base of sources for keys of one type: they are searched when a job is planned, and each task reads a share."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from redis import Redis

from penstock.encoding import encoded
from penstock.spark.options import Options, connect
from penstock.spark.staging import MAX_KEYS, chunks


@dataclass(frozen=True)
class Keys(InputPartition):
    """The keys that one task reads."""

    keys: list[bytes]


class Table:
    """Base of the readers of jobs and of queries."""

    def __init__(self, options: Options, type_: str) -> None:
        self._url = options.url()
        self._type = type_
        self._names = [name for name in options.text("keys").split(",") if name]
        self._prefix = encoded(options.text("keyPrefix", ""))
        self._parts = options.whole("partitions", options.whole("minPartitions", 1, most=1_000), most=1_000)

    def existing(self, redis: "Redis") -> list[bytes]:
        """Return the keys, sorted: patterns are searched for keys of the type."""
        patterns = [name for name in self._names if any(letter in name for letter in "*?[")]
        found = {self._prefix + name.encode() for name in self._names if name not in patterns}
        for pattern in patterns:
            match = _literal(self._prefix) + pattern.encode()
            found.update(redis.scan_iter(match=match, count=MAX_KEYS, _type=self._type))
        return sorted(found)

    def shares(self, keys: list[bytes]) -> list[list[bytes]]:
        """Divide ``keys`` among the tasks."""
        cuts = [len(keys) * part // self._parts for part in range(self._parts + 1)]
        return [keys[first:end] for first, end in pairwise(cuts)]


class TableReader(Table, DataSourceReader):
    """Reads the keys that exist when the job is planned; one that is gone when it is read gives no row."""

    def partitions(self) -> Sequence[InputPartition]:
        with connect(self._url) as redis:
            return [Keys(part) for part in self.shares(self.existing(redis))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Keys)
        with connect(self._url) as redis:
            for keys in chunks(partition.keys, MAX_KEYS):
                yield from self.rows(redis, keys)

    @abstractmethod
    def rows(self, redis: "Redis", keys: list[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``keys``, at most ``MAX_KEYS``."""


def _literal(prefix: bytes) -> bytes:
    """Return the glob-style pattern of exactly ``prefix``."""
    return b"".join(b"\\" + bytes((each,)) if each in b"*?[]\\^-" else bytes((each,)) for each in prefix)
