"""The archive: Parquet files by date, namespace and micro-batch.

A micro-batch that is written again, after a crash in its midst, replaces what it had written: its rows are the same,
and so are the directories they belong to. The directory of a batch bears the id of the query, so that another one,
with a checkpoint of its own, cannot take it for its own.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis import Redis

from penstock.keys import Keys
from penstock.lua import Script
from penstock.spark.options import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_archived: Final = Script.read(Path(__file__).parent / "lua" / "archived.lua")
EVENTS: Final = "events"
MALFORMED: Final = "_malformed"


class Archive:
    """Writes what ``foreachBatch`` gives."""

    def __init__(self, directory: str, redis: Redis, keys: Keys) -> None:
        self._directory, self._redis, self._metric = directory, redis, keys.metric("pipeline")

    def write(self, batch: "DataFrame", number: int) -> None:
        """Have the rows of micro-batch ``number`` in the archive, once, and counted, once.

        One that is counted is there: then Spark was not told, and nothing is read again.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        begun = time.monotonic()
        query = str(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
        known: list[bytes | None] = self._redis.hmget(self._metric, "query", "batch")  # type: ignore[assignment]
        if known[0] == query.encode() and int(known[1] or -1) >= number:
            return
        name = f"{query[:8]}-{number:09d}"
        seen = Observation()
        rows = batch.observe(
            seen, F.count("event").alias("events"), F.count("malformed").alias("malformed")
        ).withColumns({"date": F.to_date("at"), "batch": F.lit(name)})
        _write(rows.where("malformed is null").drop("malformed"), f"{self._directory}/{EVENTS}", "date", "namespace")
        counts = seen.get
        if counts["malformed"]:
            aside = batch.where("malformed is not null").select("namespace", "entry", "malformed")
            _write(aside.withColumn("batch", F.lit(name)), f"{self._directory}/{MALFORMED}")
        run(
            self._redis,
            _archived,
            metric=self._metric,
            query=query,
            batch=number,
            events=counts["events"],
            malformed=counts["malformed"],
            seconds=time.monotonic() - begun,
        )


def _write(rows: "DataFrame", directory: str, *columns: str) -> None:
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*columns, "batch").parquet(directory)
