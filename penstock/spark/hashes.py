"""Format ``redis-hash``: a row is a hash, its columns are the fields."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark.fields import FIELDS
from penstock.spark.options import Options
from penstock.spark.sinks.hashes import HashSink
from penstock.spark.sinks.writers import BatchWriter, StreamWriter
from penstock.spark.sources.hashes import HashReader
from penstock.spark.sources.versions import OPTIONS, VersionReader


class RedisHash(DataSource):
    """See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "redis-hash"

    def schema(self) -> StructType:
        options = Options("redis-hash", self.options, OPTIONS)
        return StructType([StructField(options.text("keyColumn", "key"), StringType()), StructField("fields", FIELDS)])

    def reader(self, schema: StructType) -> "HashReader":
        return HashReader(self.options, schema)

    def streamReader(self, schema: StructType) -> "VersionReader":
        return VersionReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(HashSink(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        return StreamWriter(HashSink(self.options, schema, overwrite))
