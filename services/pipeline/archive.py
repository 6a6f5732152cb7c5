"""Writer of the archive: Parquet files by date, namespace and micro-batch.

A micro-batch that is repeated after a crash has the same rows and directories, so it replaces what it had written. The
name of a directory has the id of the query, so that another query, with a checkpoint of its own, cannot replace it.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis import Redis

from penstock.errors import Unsuitable
from penstock.keys import Keys
from penstock.script import Script
from penstock.spark.archive import DDL, EVENTS, MALFORMED, RECENT, Batches, delete, overwrite
from penstock.spark.masking import masked
from penstock.spark.options import run
from services.pipeline.rollups import Rollups
from services.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_archived: Final = Script.read(Path(__file__).parent / "lua" / "archived.lua")


def short(query: str) -> str:
    """Return the part of a query's id that is in the names of its directories."""
    return query[:8]


class Archive:
    """Writes the micro-batches of ``foreachBatch``."""

    def __init__(self, settings: Settings, redis: Redis, keys: Keys, rollups: Rollups | None) -> None:
        self._directory, self._redis, self._metric = settings.archive, redis, keys.metric("pipeline")
        roots = [f"{settings.archive}/{root}" for root in (RECENT[EVENTS], EVENTS)]
        self._events, self._elsewhere = roots if settings.merge_every else reversed(roots)
        self._may_repeat = True
        """Whether the next micro-batch may have been written before, and elsewhere if ``mergeEvery`` has changed."""
        self._rollups, self._payloads, self._mask = rollups, settings.payloads, settings.mask

    def write(self, batch: "DataFrame", number: int) -> None:
        """Write micro-batch ``number`` to the archive and the roll-ups, and count it, exactly once.

        If it is counted already, though Spark does not know, return at once. Raise ``Unsuitable`` if a later one is
        counted: then the checkpoint is older than the archive, and its batches may have other events.
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
        if self._may_repeat:
            delete(batch.sparkSession, self._elsewhere, "date", "namespace", name=f"batch={name}")
            self._may_repeat = False
        overwrite(events, self._events, "date", "namespace", "batch")
        counts = seen.get
        if counts["malformed"]:
            aside = batch.where("malformed is not null").select("namespace", "entry", "malformed")
            overwrite(aside.withColumn("batch", F.lit(name)), f"{self._directory}/{MALFORMED}", "batch")
        late = 0
        if self._rollups and counts["events"]:
            late = self._rollups.add(self._written(batch, name, counts["places"]), query, number, name)
        run(
            self._redis,
            _archived,
            metric=self._metric,
            query=query,
            batch=number,
            events=counts["events"],
            malformed=counts["malformed"],
            late=late,
            seconds=time.monotonic() - begun,
        )

    def counted(self, query: str) -> int:
        """Return the last counted micro-batch of ``query``, -1 if none; earlier ones are never repeated."""
        known: list[bytes | None] = self._redis.hmget(self._metric, "query", "batch")  # type: ignore[assignment]
        return int(known[1] or -1) if known[0] == query.encode() else -1

    def _written(self, batch: "DataFrame", name: str, places: list[Any]) -> "DataFrame":
        """Read the batch from the archive: cheaper than to read it from Redis again, or to cache it."""
        spark = batch.sparkSession
        escape: Any = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName  # type: ignore[union-attr]
        base = self._events
        paths = [f"{base}/date={date}/namespace={escape(namespace)}/batch={name}" for date, namespace in places]
        return spark.read.schema(DDL).option("basePath", base).parquet(*paths)
