"""pipeline: archive the events of many namespaces with Spark."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redis import Redis
from redis.exceptions import ConnectionError as Disconnected

from common.context import Context
from penstock.base.errors import PenstockError, QueryFailed
from penstock.core.tasks import begin
from penstock.spark.archive import EVENTS, MINUTES, Mounted, mounted
from penstock.spark.options import connect
from penstock.spark.reasons import SLOW_PYTHON, reason, reason_of_error, stop
from penstock.spark.session import BY_ROW, session
from penstock.spark.sources.archiving import RedisArchive
from services.pipeline.archive import Archive, short
from services.pipeline.merging import Merger
from services.pipeline.rollups import Rollups
from services.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 10
"""Time between two merges, at least, if the first one has failed."""
DEFAULT_MERGE_SECONDS: Final = 900
"""Time between two merges of parts of roll-ups if events are not merged."""
AWAY: Final = ("redis.exceptions.ConnectionError", "redis.exceptions.TimeoutError", "redis.exceptions.BusyLoadingError")
"""Errors of a query whose server is away: the service waits then."""


class Pipeline:
    """Runs of the service, and the Spark session that all of them use."""

    _spark: "SparkSession"
    _events: "asyncio.Task[tuple[Mounted | None, DataFrame]]"

    @asynccontextmanager
    async def lifespan(self, settings: Settings) -> AsyncIterator[None]:
        """Keep one session until the settings change, whether the server is there or away."""
        tuned = {
            # Adaptive plans cost each of the small jobs of a micro-batch more than they save.
            "spark_sql_adaptive_enabled": "false",
            # Open files of a task: with fewer it sorts all rows by file first. With payloads they need too much memory.
            "spark_sql_maxConcurrentOutputFileWriters": "0" if settings.payloads else "64",
        } | (BY_ROW if settings.payloads else {})
        self._spark = await asyncio.to_thread(session, settings.master, settings.memory, **tuned)
        self._plan(settings)
        warming = asyncio.create_task(self._warm())
        try:
            yield
        finally:
            await asyncio.to_thread(stop, self._spark)
            await asyncio.gather(self._events, warming, return_exceptions=True)

    async def run(self, context: Context[Settings]) -> None:
        """Run a query from its checkpoint on until the run ends.

        Raise ``QueryFailed`` with Spark's reason, or a lost connection for what passes: then the run is repeated.
        """
        with one_line_errors(context.settings.archive):
            try:
                place, events = await asyncio.shield(self._events)
            except Exception:
                self._plan(context.settings)  # for the next run
                raise
            await _run(context, self._spark, place, events)

    def _plan(self, settings: Settings) -> None:
        self._events = begin(asyncio.to_thread(_events, self._spark, settings))

    async def _warm(self) -> None:
        """Let Python's workers, which the first micro-batch needs, start while the lease is waited for."""
        await asyncio.wait({self._events})
        await asyncio.to_thread(_start_workers, self._spark)


@contextmanager
def one_line_errors(archive: str) -> Iterator[None]:
    """Raise, with one line, what an error of Spark or of the connection to its Java means for the service."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        raise _failure(reason_of_error(error, archive)) from error


async def _run(context: Context[Settings], spark: "SparkSession", place: Mounted | None, events: "DataFrame") -> None:
    settings = context.settings
    context.recovers_alone = False
    with connect(settings.redis, name="penstock-pipeline") as redis:
        merger, rollups = await asyncio.to_thread(take_over, spark, settings, redis, place)
        archive = Archive(settings, redis, context.required_keys, rollups, place)
        query = await asyncio.to_thread(_begin, events, settings, archive)
        tidying = asyncio.create_task(_tidy(context, spark, query, archive, merger, rollups))
        try:
            while context.running and not tidying.done():
                if query.lastProgress:
                    context.outage.over()
                await context.pause(POLL_SECONDS)
        finally:
            await asyncio.to_thread(_end, query, settings.stop_timeout / 2)
            await asyncio.wait({tidying}, timeout=settings.stop_timeout / 4)
            await asyncio.to_thread(spark.sparkContext.cancelAllJobs)
            await asyncio.gather(tidying, return_exceptions=True)
        if error := query.exception():
            raise query_error(str(error), settings.archive)
        if context.running:
            tidying.result()


async def _tidy(
    context: Context[Settings],
    spark: "SparkSession",
    query: "StreamingQuery",
    archive: Archive,
    merger: Merger,
    rollups: Rollups | None,
) -> None:
    """Close the roll-ups of windows that are over and publish recent rows, while ``query`` runs."""

    def merge(bases: list[str]) -> int:
        return merger.merge(short(query.id), archive.repeatable(spark, query.id), *bases)

    settings = context.settings
    every = {EVENTS: settings.merge_every, MINUTES: settings.merge_every or DEFAULT_MERGE_SECONDS}
    due = dict.fromkeys(every, time.monotonic() + settings.merge_every)  # what is left from before must not wait
    while context.running and await asyncio.to_thread(lambda: query.isActive):
        if rollups:
            await asyncio.to_thread(rollups.close)
        if now := [base for base, at in due.items() if time.monotonic() >= at]:
            pause = 0 if await _merge(context, partial(merge, now)) else RETRY_SECONDS
            due |= {base: time.monotonic() + max(every[base], pause) for base in now}
        await context.pause(POLL_SECONDS)


async def _merge(context: Context[Settings], merge: Callable[[], int]) -> bool:
    """Publish recent rows; return whether that went well. A failure is logged; nothing is lost then."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    start, settings = time.monotonic(), context.settings
    try:
        many = await asyncio.to_thread(merge)
    except (PenstockError, Py4JError, PySparkException) as error:
        if context.running:
            context.log.warning("not merged", reason=reason_of_error(error, settings.archive))
        return False
    if many and settings.merge_every:
        context.log.info("merged", batches=many, seconds=round(time.monotonic() - start, 3))
    return True


def take_over(
    spark: "SparkSession", settings: Settings, redis: "Redis", place: Mounted | None
) -> tuple[Merger, Rollups | None]:
    """Prevent a process that may still run from writing into the archive; then read which windows are open."""
    merger = Merger(spark, settings.archive)
    if place:
        place.begin()
    if not settings.rollups:
        return merger, None
    return merger, Rollups(spark, settings.archive, redis, settings.kept, settings.lateness, place)


def _events(spark: "SparkSession", settings: Settings) -> "tuple[Mounted | None, DataFrame]":
    """Return where files are written, and the events as ``redis-archive`` reads them."""
    place = mounted(spark, settings.archive)
    options: dict[str, str | int] = {
        "url": settings.redis,
        "keys": ",".join(settings.lists()),
        "maxOffsetsPerTrigger": settings.max_events,
        "discover": settings.discover,
        "partitions": max(spark.sparkContext.defaultParallelism, 2),
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
        "payloads": str(settings.payloads).lower(),
        "mask": json.dumps(settings.mask),
        "rollups": str(settings.rollups).lower(),
        "directory": str(place.aside) if place else "",
    }
    spark.dataSource.register(RedisArchive)
    return place, spark.readStream.format("redis-archive").options(**options).load()


def _start_workers(spark: "SparkSession") -> None:
    def same(rows: Iterator[Any]) -> Iterator[Any]:
        import penstock.spark.sources.archiving  # noqa: F401

        yield from rows

    count = spark.sparkContext.defaultParallelism
    spark.range(count, numPartitions=count).mapInArrow(same, "id long").collect()


def _begin(events: "DataFrame", settings: Settings, archive: Archive) -> "StreamingQuery":
    writer: Any = events.writeStream.foreachBatch(archive.write).option("checkpointLocation", settings.progress)
    query: StreamingQuery = writer.trigger(processingTime=f"{settings.trigger} seconds").start()
    return query


def _end(query: "StreamingQuery", patience: float) -> None:
    """Stop after the current micro-batch, or after ``patience`` s: then the next query repeats it."""
    end = time.monotonic() + patience
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
        time.sleep(0.02)
    query.stop()


def query_error(error: str, archive: str) -> Exception:
    """Return the reason, in one line, of all that Spark says of a query that failed."""
    lines = [line.strip() for line in error.splitlines()]
    ours = next((line for line in reversed(lines) if line.startswith(("penstock.base.errors.", *AWAY))), "")
    if ours.startswith(AWAY):
        return Disconnected(ours.partition(": ")[2])
    return _failure(ours.removeprefix("penstock.base.errors.") or reason(error, archive))


def _failure(reason: str) -> Exception:
    """Return ``Disconnected``, which the service waits out, for a Python that was too slow, else ``QueryFailed``."""
    return Disconnected(reason) if reason == SLOW_PYTHON else QueryFailed(reason)
