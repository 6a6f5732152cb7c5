"""Formats ``redis-string``, ``redis-set`` and ``redis-zset``: a row is a string, or a member of a set."""

from typing import ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.spark.options import Options
from penstock.spark.sinks.keys import KeySink
from penstock.spark.sinks.writers import BatchWriter, StreamWriter
from penstock.spark.sources.keys import OPTIONS, SET, SORTED_SET, STRING, KeyReader, Kind


class _Table(DataSource):
    """See docs/spark.md."""

    kind: ClassVar[Kind]

    @classmethod
    def name(cls) -> str:
        return cls.kind.format

    def schema(self) -> str:
        return self.kind.ddl(Options(self.kind.format, self.options, OPTIONS).truth("text", True))

    def reader(self, schema: StructType) -> "KeyReader":
        return KeyReader(self.kind, self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(KeySink(self.kind, self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        return StreamWriter(KeySink(self.kind, self.options, schema, overwrite))


class RedisString(_Table):
    kind = STRING


class RedisSet(_Table):
    kind = SET


class RedisSortedSet(_Table):
    kind = SORTED_SET
