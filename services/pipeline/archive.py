"""Writer of the archive: Parquet files by micro-batch.

A micro-batch that is repeated after a crash has the same rows and the same directory, so it replaces what it had
written. The name of the directory has the id of the query, so that another query, with a checkpoint of its own, cannot
replace it.
"""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis import Redis

from penstock.base.errors import Unsuitable
from penstock.base.keys import Keys
from penstock.core.script import Script
from penstock.spark.archive import DDL, EVENTS, MALFORMED, RECENT, Mounted, delete_published, overwrite
from penstock.spark.claims import PUBLISHED, Batches, exists, read_claim
from penstock.spark.options import run
from penstock.spark.rollups import added_up, minutes
from services.pipeline.rollups import Rollups
from services.pipeline.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_archived: Final = Script.read(Path(__file__).parent / "lua" / "archived.lua")


def short(query: str) -> str:
    """Return the part of a query's id that is in the names of its directories."""
    return query[:8]


class Archive:
    """Writes the micro-batches of ``foreachBatch``."""

    def __init__(
        self, settings: Settings, redis: Redis, keys: Keys, rollups: Rollups | None, mounted: Mounted | None = None
    ) -> None:
        """``mounted``: the archive if tasks write the files, None if Java writes the rows."""
        self._directory, self._checkpoint = settings.archive, settings.progress
        self._redis, self._metric = redis, keys.metric("pipeline")
        self._rollups, self._mounted = rollups, mounted
        self._is_first = True

    def write(self, batch: "DataFrame", number: int) -> None:
        """Write micro-batch ``number`` of ``redis-archive`` to archive and roll-ups, and count it, exactly once.

        If it is counted already, though Spark does not know, return at once. Raise ``Unsuitable`` if a later one is
        counted: then the checkpoint is older than the archive, and its batches may have other events. Raise it, too, if
        another process has taken over the archive.
        """
        with self._mounted.owned() if self._mounted else nullcontext():
            self._write_once(batch, number)

    def _write_once(self, batch: "DataFrame", number: int) -> None:
        begun, spark = time.monotonic(), batch.sparkSession
        query = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        counted = self.counted(query)
        if counted == number:
            return
        name = Batches(short(query), number, number).name
        published = self._published(spark, name) if self._is_first else -1
        if (last := max(counted, published)) >= number:
            problem = f"micro-batch {number} comes again, though {last} is archived: the checkpoint is an older one"
            raise Unsuitable(f"{problem}; restore the last one, or begin another archive")
        if self._is_first:
            delete_published(spark, self._directory, EVENTS, name, self._mounted)
            self._is_first = False
        if self._mounted:
            events, malformed, cells = self._move(batch, name, self._mounted)
        else:
            events, malformed, cells = self._write(batch, name)
        late = 0
        if self._rollups and events:
            late = self._rollups.add(
                self._minutes(spark, name) if cells is None else added_up(cells), query, number, name
            )
        if self._mounted:
            self._mounted.clear()
        run(
            self._redis,
            _archived,
            metric=self._metric,
            query=query,
            batch=number,
            events=events,
            malformed=malformed,
            late=late,
            seconds=time.monotonic() - begun,
        )

    def counted(self, query: str) -> int:
        """Return the last counted micro-batch of ``query``, -1 if none; earlier ones are never repeated."""
        known: list[bytes | None] = self._redis.hmget(self._metric, "query", "batch")  # type: ignore[assignment]
        return int(known[1] or -1) if known[0] == query.encode() else -1

    def _published(self, spark: "SparkSession", name: str) -> int:
        """Return the last published micro-batch if micro-batch ``name`` is no later, else -1; the server may be new."""
        claims = [read_claim(spark, f"{self._directory}/{root}/{PUBLISHED}") for root in RECENT.values()]
        return max((whole.batches.last for whole in claims if whole and whole.has_published(name)), default=-1)

    def repeatable(self, spark: "SparkSession", query: str) -> int:
        """Return the first micro-batch of ``query`` that may be written again: the last counted, until Spark knows."""
        counted = self.counted(query)
        return counted + exists(spark, f"{self._checkpoint}/commits/{counted}")

    def _move(self, batch: "DataFrame", name: str, mounted: Mounted) -> tuple[int, int, "pa.Table | None"]:
        """Let tasks write a micro-batch, then move their files into place. Return the numbers of good and other rows.

        With roll-ups, return also what the tasks have counted.
        """
        import pyarrow as pa

        written = batch.collect()
        for kind, root in (("events", RECENT[EVENTS]), ("malformed", MALFORMED)):
            if files := [row["file"] for row in written if row[kind]]:
                staged = mounted.staged(kind)
                for file in files:
                    (mounted.aside / f"{file}.{kind}").rename(staged / f"{file}.parquet")
                mounted.replace(f"{root}/batch={name}", staged)
        cells = [pa.ipc.open_stream(row["cells"]).read_all() for row in written if row["cells"]]
        events, malformed = (sum(row[kind] for row in written) for kind in ("events", "malformed"))
        return events, malformed, pa.concat_tables(cells) if cells else None

    def _write(self, batch: "DataFrame", name: str) -> tuple[int, int, None]:
        """Let Java write a micro-batch."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen, good = Observation(), F.col("malformed").isNull()
        rows = batch.withColumn("batch", F.lit(name))
        counted = rows.observe(seen, F.count_if(good).alias("events"), F.count("malformed").alias("malformed"))
        overwrite(counted.where(good).drop("malformed"), f"{self._directory}/{RECENT[EVENTS]}", "batch")
        counts = seen.get
        if counts["malformed"]:
            aside = rows.where(~good).select("namespace", "entry", "malformed", "batch")
            overwrite(aside, f"{self._directory}/{MALFORMED}", "batch")
        return counts["events"], counts["malformed"], None

    def _minutes(self, spark: "SparkSession", name: str) -> "pa.Table":
        """Return the roll-ups of a micro-batch that Java has written: it is read again."""
        recent = f"{self._directory}/{RECENT[EVENTS]}"
        return minutes(spark.read.schema(DDL).option("basePath", recent).parquet(f"{recent}/batch={name}")).toArrow()
