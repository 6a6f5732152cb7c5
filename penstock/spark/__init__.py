"""Redis as a source and sink of PySpark 4: lists, streams and hashes, in batch and as streams, without a jar.

    from penstock.spark import register
    register(spark)
    events = spark.readStream.format("redis-stream").option("url", url).option("keys", "shop:*:events").load()

docs/spark.md tells of every format, its columns and its options.
"""

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make the formats ``redis-stream``, ``redis-list`` and ``redis-hash`` known to ``spark`` and its workers.

    Warn if workers of this machine run a Python that cannot import this package.
    """
    from penstock.spark.hashes import RedisHash
    from penstock.spark.lists import RedisList
    from penstock.spark.shipping import ship, what_workers_lack
    from penstock.spark.streams import RedisStream

    ship(spark)
    if problem := what_workers_lack(spark):
        warnings.warn(problem, stacklevel=2)
    for source in (RedisStream, RedisList, RedisHash):
        spark.dataSource.register(source)
