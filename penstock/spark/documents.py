"""Format ``redis-json``: a row is a JSON document, its columns are the members of the object."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark.options import Options
from penstock.spark.sinks.documents import DocumentSink
from penstock.spark.sinks.writers import BatchWriter, StreamWriter
from penstock.spark.sources.documents import DOCUMENT, OPTIONS, DocumentReader


class RedisJson(DataSource):
    """See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "redis-json"

    def schema(self) -> StructType:
        options = Options("redis-json", self.options, OPTIONS)
        names = (options.text("keyColumn", "key"), DOCUMENT)
        return StructType([StructField(name, StringType()) for name in names])

    def reader(self, schema: StructType) -> "DocumentReader":
        return DocumentReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(DocumentSink(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        return StreamWriter(DocumentSink(self.options, schema))
