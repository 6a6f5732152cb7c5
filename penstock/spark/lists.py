"""Format ``redis-list``: a row is a message (any bytes); publishers LPUSH, the oldest message is at the tail."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.base.errors import WrongOption
from penstock.spark.options import Options
from penstock.spark.sinks.lists import ListSink
from penstock.spark.sinks.writers import BatchWriter, StreamWriter
from penstock.spark.sources.lists import OPTIONS, BatchReader, StreamReader


class RedisList(DataSource):
    """See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "redis-list"

    def schema(self) -> str:
        text = Options("redis-list", self.options, OPTIONS).truth("text", False)
        return f"value {'string' if text else 'binary'}, position long"

    def reader(self, schema: StructType) -> "BatchReader":
        self._check(schema)
        return BatchReader(self.options)

    def streamReader(self, schema: StructType) -> "StreamReader":
        self._check(schema)
        return StreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(ListSink(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        return StreamWriter(ListSink(self.options, schema, overwrite))

    def _check(self, schema: StructType) -> None:
        """Raise ``WrongOption`` if the user's schema differs from ours."""
        ours = self.schema()
        given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        if given.replace("bigint", "long") != ours:
            raise WrongOption(f"redis-list: schema: {given}: expected {ours}; a string needs the option text=true")
