"""Writer of the archive: Parquet files by micro-batch.

A micro-batch that is repeated after a crash has the same rows and directories, so it replaces what it had written. The
name of a directory has the id of the query, so that another query, with a checkpoint of its own, cannot replace it.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis import Redis

from penstock.errors import Unsuitable
from penstock.keys import Keys
from penstock.script import Script
from penstock.spark.archive import DDL, EVENTS, MALFORMED, PARTITIONS, RECENT, Batches, delete, overwrite
from penstock.spark.masking import masked
from penstock.spark.options import run
from services.pipeline.rollups import Rollups
from services.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = tuple[str, tuple[str, ...]]
"""A directory, and the columns of the directories above those of micro-batches."""
_archived: Final = Script.read(Path(__file__).parent / "lua" / "archived.lua")


def short(query: str) -> str:
    """Return the part of a query's id that is in the names of its directories."""
    return query[:8]


class Archive:
    """Writes the micro-batches of ``foreachBatch``."""

    def __init__(self, settings: Settings, redis: Redis, keys: Keys, rollups: Rollups | None) -> None:
        self._directory, self._redis, self._metric = settings.archive, redis, keys.metric("pipeline")
        recent: Place = f"{settings.archive}/{RECENT[EVENTS]}", ()
        published: Place = f"{settings.archive}/{EVENTS}", PARTITIONS[EVENTS]
        self._here, self._elsewhere = (recent, published) if settings.merge_every else (published, recent)
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
        directory, columns = self._here
        good = F.col("malformed").isNull()
        seen, counted_rows = Observation(), [F.count(each).alias(each) for each in ("event", "malformed")]
        if columns:
            counted_rows.append(F.collect_set(F.when(good, F.struct(*columns))).alias("places"))
        rows = batch.withColumn("date", F.to_date("at")).observe(seen, *counted_rows)
        events = rows.where(good).drop("malformed").withColumn("batch", F.lit(name))
        events = (
            masked(events, self._mask) if self._payloads else events.withColumn("message", F.lit(None).cast("binary"))
        )
        if self._may_repeat:
            elsewhere, others = self._elsewhere
            delete(batch.sparkSession, elsewhere, *others, name=f"batch={name}")
            self._may_repeat = False
        overwrite(events, directory, *columns, "batch")
        counts = seen.get
        if counts["malformed"]:
            aside = batch.where("malformed is not null").select("namespace", "entry", "malformed")
            overwrite(aside.withColumn("batch", F.lit(name)), f"{self._directory}/{MALFORMED}", "batch")
        late = 0
        if self._rollups and counts["event"]:
            written = self._written(batch.sparkSession, name, counts.get("places", [()]))
            late = self._rollups.add(written, query, number, name)
        run(
            self._redis,
            _archived,
            metric=self._metric,
            query=query,
            batch=number,
            events=counts["event"],
            malformed=counts["malformed"],
            late=late,
            seconds=time.monotonic() - begun,
        )

    def counted(self, query: str) -> int:
        """Return the last counted micro-batch of ``query``, -1 if none; earlier ones are never repeated."""
        known: list[bytes | None] = self._redis.hmget(self._metric, "query", "batch")  # type: ignore[assignment]
        return int(known[1] or -1) if known[0] == query.encode() else -1

    def _written(self, spark: "SparkSession", name: str, places: Iterable[Sequence[Any]]) -> "DataFrame":
        """Read the batch from the archive: cheaper than to read it from Redis again, or to cache it."""
        escape: Any = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName  # type: ignore[union-attr]
        directory, columns = self._here
        paths = [
            "/".join(
                [directory, *(f"{column}={escape(str(value))}" for column, value in zip(columns, place, strict=True))]
            )
            for place in places
        ]
        reader = spark.read.schema(DDL).option("basePath", directory)
        return reader.parquet(*(f"{path}/batch={name}" for path in paths))
