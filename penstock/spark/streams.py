"""Format ``redis-stream``: a row is an event, or a raw entry of any stream."""

from typing import Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.spark.options import Options
from penstock.spark.sinks.streams import StreamSink
from penstock.spark.sinks.writers import BatchWriter, StreamWriter
from penstock.spark.sources.raw import RAW_COLUMNS
from penstock.spark.sources.streams import OPTIONS, BatchReader, StreamReader, is_raw

DDL: Final = (
    "namespace string, entry string, place int, number long, event string, id string, xid string, at timestamp, "
    "queue string, service string, attempt int, seconds double, malformed string, message binary, "
    "extra string, timeout double, entry_ms long, entry_sequence long"
)
"""Columns of events; those of raw entries are ``RAW_COLUMNS``."""


class RedisStream(DataSource):
    """See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "redis-stream"

    def schema(self) -> str:
        return RAW_COLUMNS if is_raw(Options("redis-stream", self.options, OPTIONS)) else DDL

    def reader(self, schema: StructType) -> "BatchReader":
        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> "StreamReader":
        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(StreamSink(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        return StreamWriter(StreamSink(self.options, schema, overwrite))
