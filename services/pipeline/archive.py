"""The archive: Parquet files by date, namespace and micro-batch.

A micro-batch that is written again, after a crash in its midst, replaces what it had written: its rows are the same,
and so are the directories they belong to. The directory of a batch bears the id of the query, so that another one,
with a checkpoint of its own, cannot take it for its own.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis import Redis

from penstock.keys import Keys
from penstock.lua import Script
from penstock.spark.archive import DDL, EVENTS, MALFORMED, overwrite
from penstock.spark.masking import masked
from penstock.spark.options import run
from services.pipeline.rollups import Rollups
from services.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_archived: Final = Script.read(Path(__file__).parent / "lua" / "archived.lua")


class Archive:
    """Writes what ``foreachBatch`` gives."""

    def __init__(self, settings: Settings, redis: Redis, keys: Keys, rollups: Rollups | None) -> None:
        self._directory, self._redis, self._metric = settings.archive, redis, keys.metric("pipeline")
        self._rollups, self._payloads, self._mask = rollups, settings.payloads, settings.mask

    def write(self, batch: "DataFrame", number: int) -> None:
        """Have the rows of micro-batch ``number`` in the archive and the roll-ups, once, and counted, once.

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
        rows = batch.withColumn("date", F.to_date("at")).observe(
            seen,
            F.count("event").alias("events"),
            F.count("malformed").alias("malformed"),
            F.collect_set(F.when(F.col("malformed").isNull(), F.struct("date", "namespace"))).alias("places"),
        )
        events = rows.where("malformed is null").drop("malformed").withColumn("batch", F.lit(name))
        events = (
            masked(events, self._mask) if self._payloads else events.withColumn("message", F.lit(None).cast("binary"))
        )
        overwrite(events, f"{self._directory}/{EVENTS}", "date", "namespace", "batch")
        told = seen.get
        if told["malformed"]:
            aside = batch.where("malformed is not null").select("namespace", "entry", "malformed")
            overwrite(aside.withColumn("batch", F.lit(name)), f"{self._directory}/{MALFORMED}", "batch")
        late = 0
        if self._rollups and told["events"]:
            late = self._rollups.add(self._written(batch, name, told["places"]), query, number, name)
        run(
            self._redis,
            _archived,
            metric=self._metric,
            query=query,
            batch=number,
            events=told["events"],
            malformed=told["malformed"],
            late=late,
            seconds=time.monotonic() - begun,
        )

    def _written(self, batch: "DataFrame", name: str, places: list[Any]) -> "DataFrame":
        """What was just written: that costs less than to read it from the server again, or to keep it meanwhile."""
        spark = batch.sparkSession
        escape: Any = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName  # type: ignore[union-attr]
        base = f"{self._directory}/{EVENTS}"
        paths = [f"{base}/date={date}/namespace={escape(namespace)}/batch={name}" for date, namespace in places]
        return spark.read.schema(DDL).option("basePath", base).parquet(*paths)
