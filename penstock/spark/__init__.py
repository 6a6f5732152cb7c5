"""Sources and sinks of PySpark 4 for lists, streams, hashes and more in Redis, in batch and streaming, without a jar.

    from penstock.spark import register
    register(spark)
    events = spark.readStream.format("redis-stream").option("url", url).option("keys", "shop:*:events").load()

docs/spark.md describes every format, its columns and its options.
"""

import warnings
from typing import TYPE_CHECKING

from penstock.base.extras import extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register the formats of docs/spark.md, ``redis-stream`` and others, with ``spark`` and its workers.

    Warn if local workers run a Python that cannot import this package.
    """
    with extra("spark"):
        from penstock.spark.documents import RedisJson
        from penstock.spark.hashes import RedisHash
        from penstock.spark.keys import RedisSet, RedisSortedSet, RedisString
        from penstock.spark.lists import RedisList
        from penstock.spark.shipping import ship, what_workers_lack
        from penstock.spark.streams import RedisStream

    ship(spark)
    if problem := what_workers_lack(spark):
        warnings.warn(problem, stacklevel=2)
    for source in (RedisStream, RedisList, RedisHash, RedisString, RedisSet, RedisSortedSet, RedisJson):
        spark.dataSource.register(source)
