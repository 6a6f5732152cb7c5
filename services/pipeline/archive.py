"""The archive: Parquet files by date, namespace and micro-batch.

A micro-batch that is written again, after a crash in its midst, replaces what it had written: its rows are the same,
and so are the directories they belong to. The directory of a batch bears the id of the query, so that another one,
with a checkpoint of its own, cannot take it for its own.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis import Redis

from penstock.errors import Unsuitable
from penstock.keys import Keys
from penstock.script import Script
from penstock.spark.archive import DDL, EVENTS, MALFORMED, Batches, overwrite
from penstock.spark.masking import masked
from penstock.spark.options import run
from services.pipeline.rollups import Rollups
from services.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_archived: Final = Script.read(Path(__file__).parent / "lua" / "archived.lua")


def short(query: str) -> str:
    """What directories bear of the id of a query."""
    return query[:8]


class Archive:
    """Writes what ``foreachBatch`` gives."""

    def __init__(self, settings: Settings, redis: Redis, keys: Keys, rollups: Rollups | None) -> None:
        self._directory, self._redis, self._metric = settings.archive, redis, keys.metric("pipeline")
        self._rollups, self._payloads, self._mask = rollups, settings.payloads, settings.mask

    def write(self, batch: "DataFrame", number: int) -> None:
        """Have the rows of micro-batch ``number`` in the archive and the roll-ups, once, and counted, once.

        One that is counted is there: then Spark was not told, and nothing is read again. Raises ``Unsuitable`` where
        later ones are counted: what the checkpoint takes for this one may be something else.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        begun = time.monotonic()
        query = str(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
        counted = self.counted(query)
        if counted > number:
            problem = f"micro-batch {number} comes again, though {counted} is archived: the checkpoint is an older one"
            raise Unsuitable(f"{problem}; restore the last one, or begin another archive")
        if counted == number:
            return
        name = Batches(short(query), number, number).name
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

    def counted(self, query: str) -> int:
        """The micro-batch of ``query`` that was counted last, -1 for none; those before it never come again."""
        known: list[bytes | None] = self._redis.hmget(self._metric, "query", "batch")  # type: ignore[assignment]
        return int(known[1] or -1) if known[0] == query.encode() else -1

    def _written(self, batch: "DataFrame", name: str, places: list[Any]) -> "DataFrame":
        """What was just written: that costs less than to read it from the server again, or to keep it meanwhile."""
        spark = batch.sparkSession
        escape: Any = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName  # type: ignore[union-attr]
        base = f"{self._directory}/{EVENTS}"
        paths = [f"{base}/date={date}/namespace={escape(namespace)}/batch={name}" for date, namespace in places]
        return spark.read.schema(DDL).option("basePath", base).parquet(*paths)
