"""Writer of the archive: Parquet files by micro-batch.

A micro-batch that is repeated after a crash has the same rows and directories, so it replaces what it had written. The
name of a directory has the id of the query, so that another query, with a checkpoint of its own, cannot replace it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis import Redis

from penstock.errors import Unsuitable
from penstock.keys import Keys
from penstock.script import Script
from penstock.spark.archive import (
    DDL,
    EVENTS,
    MALFORMED,
    PARTITIONS,
    RECENT,
    WRITING,
    Batches,
    delete,
    exists,
    listed,
    move,
    overwrite,
)
from penstock.spark.masking import masked
from penstock.spark.options import run
from services.pipeline.rollups import Rollups
from services.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Place = tuple[str, tuple[str, ...]]
"""A directory, and the columns of the directories above those of micro-batches."""
ASIDE: Final = "_writing"
MAX_NAME: Final = 255 - len("namespace=")
"""Maximum size of a namespace (bytes), escaped as the name of a directory."""
ESCAPED: Final = r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]"""
"""Letters that Spark writes as ``%HH`` in names of directories."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the directory of the rows without a value."""
UNSUITABLE: Final = '{"namespace": "no directory can be named after it"}'
_archived: Final = Script.read(Path(__file__).parent / "lua" / "archived.lua")


def short(query: str) -> str:
    """Return the part of a query's id that is in the names of its directories."""
    return query[:8]


def _is_unsuitable() -> "Column":
    """Return whether no directory can be named after the namespace of an event."""
    from pyspark.sql import functions as F

    name = F.col("namespace")
    size = F.octet_length(F.regexp_replace(name, ESCAPED, "%00"))
    return name.isin("", NULL) | name.contains("\0") | ((F.octet_length(name) > MAX_NAME // 3) & (size > MAX_NAME))


class Archive:
    """Writes the micro-batches of ``foreachBatch``."""

    def __init__(self, settings: Settings, redis: Redis, keys: Keys, rollups: Rollups | None) -> None:
        self._directory, self._checkpoint = settings.archive, settings.progress
        self._redis, self._metric = redis, keys.metric("pipeline")
        recent: Place = f"{settings.archive}/{RECENT[EVENTS]}", ()
        published: Place = f"{settings.archive}/{EVENTS}", PARTITIONS[EVENTS]
        self._here, self._elsewhere = (recent, published) if settings.merge_every else (published, recent)
        self._may_repeat = True
        """Whether the next micro-batch may have been written before."""
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
        batch = batch.withColumn("malformed", F.coalesce("malformed", F.when(_is_unsuitable(), F.lit(UNSUITABLE))))
        seen, good = Observation(), F.col("malformed").isNull()
        counted_rows = F.count_if(good).alias("event"), F.count("malformed").alias("malformed")
        rows = batch.withColumn("date", F.to_date("at")).observe(seen, *counted_rows)
        events = rows.where(good).drop("malformed").withColumn("batch", F.lit(name))
        events = (
            masked(events, self._mask) if self._payloads else events.withColumn("message", F.lit(None).cast("binary"))
        )
        written = self._write(events, name)
        counts = seen.get
        if counts["malformed"]:
            aside = batch.where("malformed is not null").select("namespace", "entry", "malformed")
            overwrite(aside.withColumn("batch", F.lit(name)), f"{self._directory}/{MALFORMED}", "batch")
        late = 0
        if self._rollups and counts["event"]:
            late = self._rollups.add(written(), query, number, name)
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

    def repeatable(self, spark: "SparkSession", query: str) -> int:
        """Return the first micro-batch of ``query`` that may be written again: the last counted, until Spark knows."""
        counted = self.counted(query)
        return counted + exists(spark, f"{self._checkpoint}/commits/{counted}")

    def _write(self, events: "DataFrame", name: str) -> "Callable[[], DataFrame]":
        """Write a micro-batch; return what reads it: that is cheaper than to read it from Redis again, or to cache it.

        One that may have been written before goes to the same place, though ``mergeEvery`` may have changed.
        """
        spark = events.sparkSession
        directory, columns = self._here
        if self._may_repeat:
            there, others = self._elsewhere
            if listed(spark, there, *others, name=f"batch={name}"):
                directory, columns = self._elsewhere
            self._may_repeat = False
        paths = [f"{directory}/batch={name}"]
        if columns:
            paths = self._publish(events, directory, *columns, "batch")
        else:
            overwrite(events, directory, "batch")
        return lambda: spark.read.schema(DDL).option("basePath", directory).parquet(*paths)

    def _publish(self, events: "DataFrame", published: str, *columns: str) -> list[str]:
        """Write ``events`` where nobody reads, then move the directories to where others do; return their paths."""
        spark, aside = events.sparkSession, f"{self._directory}/{ASIDE}"
        delete(spark, aside)
        events.write.options(**WRITING).partitionBy(*columns).parquet(aside)
        paths = []
        for values in listed(spark, aside, *columns):
            place = "/".join(f"{column}={value}" for column, value in zip(columns, values, strict=True))
            paths.append(f"{published}/{place}")
            delete(spark, paths[-1])
            move(spark, f"{aside}/{place}", paths[-1])
        delete(spark, aside)
        return paths
