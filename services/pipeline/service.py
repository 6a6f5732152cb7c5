"""pipeline: the events of many namespaces, in an archive that Spark writes and reads."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from redis import Redis
from redis.exceptions import ConnectionError as Disconnected

from common.context import Context
from penstock.errors import PenstockError, QueryFailed
from penstock.spark.options import connect
from penstock.spark.reasons import reason, said, stop
from penstock.spark.session import session
from services.pipeline.archive import Archive, short
from services.pipeline.merging import Merger
from services.pipeline.rollups import Rollups
from services.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK: Final = 0.5
"""Seconds between two looks at the query."""
AWAY: Final = ("redis.exceptions.ConnectionError", "redis.exceptions.TimeoutError", "redis.exceptions.BusyLoadingError")
"""What a query says of a server that is away: the service waits then."""
_sessions: "list[SparkSession]" = []


@asynccontextmanager
async def sparks(settings: Settings) -> AsyncIterator[None]:
    """While the process lives there is one Spark, whatever becomes of the server."""
    tuned = {
        # Adaptive plans cost each of the small jobs of a micro-batch more than they save.
        "spark_sql_adaptive_enabled": "false",
        # Files that a task has open at once, or it sorts all rows by file first; with payloads they want too much room.
        "spark_sql_maxConcurrentOutputFileWriters": "0" if settings.payloads else "64",
    }
    spark = await asyncio.to_thread(session, settings.master, settings.memory, **tuned)
    _sessions.append(spark)
    try:
        yield
    finally:
        _sessions.remove(spark)
        await asyncio.to_thread(stop, spark)


async def run(context: Context[Settings]) -> None:
    """One query, from where its checkpoint says, until the run shall end. Raise ``QueryFailed`` with Spark's reason."""
    with explained(context.settings.archive):
        await _run(context)


@contextmanager
def explained(archive: str) -> Iterator[None]:
    """Raise what Spark or the connection to its Java raises as ``QueryFailed``, in one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        raise QueryFailed(said(error, archive)) from error


async def _run(context: Context[Settings]) -> None:
    assert context.keys
    settings = context.settings
    context.mends = False
    with connect(settings.redis, name="penstock-pipeline") as redis:
        spark = _sessions[-1]
        rollups = await asyncio.to_thread(_rollups, spark, settings, redis) if settings.rollups else None
        archive = Archive(settings, redis, context.keys, rollups)
        query = await asyncio.to_thread(_begin, spark, settings, archive)
        tidying = asyncio.create_task(_tidy(context, query, archive, rollups))
        try:
            while context.running and not tidying.done():
                if query.lastProgress:
                    context.trouble.over()
                await context.pause(LOOK)
        finally:
            await asyncio.to_thread(_end, query, settings.stop_timeout / 2)
            await asyncio.wait({tidying}, timeout=settings.stop_timeout / 4)
            await asyncio.to_thread(spark.sparkContext.cancelAllJobs)
            await asyncio.gather(tidying, return_exceptions=True)
        if error := query.exception():
            raise _told(str(error), settings.archive)
        if context.running:
            tidying.result()


async def _tidy(context: Context[Settings], query: "StreamingQuery", archive: Archive, rollups: Rollups | None) -> None:
    """While ``query`` runs, make the rows of windows that are over, and few files of many."""
    settings = context.settings
    merger = await asyncio.to_thread(Merger, _sessions[-1], settings.archive, settings.lateness)
    merged = time.monotonic()
    while context.running and await asyncio.to_thread(lambda: query.isActive):
        if rollups:
            await asyncio.to_thread(rollups.close)
        if settings.merge_every and time.monotonic() - merged >= settings.merge_every:
            merged = time.monotonic()
            await _merge(context, merger, archive, query.id)
        await context.pause(LOOK)


async def _merge(context: Context[Settings], merger: Merger, archive: Archive, query: str) -> None:
    """Where that fails nothing is lost, and the next time may be a better one."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    start, settings = time.monotonic(), context.settings
    try:
        gone = await asyncio.to_thread(lambda: merger.merge(short(query), archive.counted(query)))
    except (PenstockError, Py4JError, PySparkException) as error:
        if context.running:
            context.log.warning("not merged", reason=said(error, settings.archive))
    else:
        if gone:
            context.log.info("merged", fewer=gone, seconds=round(time.monotonic() - start, 3))


def _rollups(spark: "SparkSession", settings: Settings, redis: "Redis") -> Rollups:
    return Rollups(spark, settings.archive, redis, settings.kept, settings.lateness)


def _begin(spark: "SparkSession", settings: Settings, archive: Archive) -> "StreamingQuery":
    options: dict[str, str | int] = {
        "url": settings.redis,
        "keys": ",".join(settings.lists()),
        "maxEventsPerTrigger": settings.max_events,
        "discover": settings.discover,
        "partitions": max(spark.sparkContext.defaultParallelism, 2),
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
    }
    events: Any = spark.readStream.format("redis-stream").options(**options).load()
    writer = events.writeStream.foreachBatch(archive.write).option("checkpointLocation", settings.progress)
    query: StreamingQuery = writer.trigger(processingTime=f"{settings.trigger} seconds").start()
    return query


def _end(query: "StreamingQuery", patience: float) -> None:
    """Let it end the micro-batch in hand; what takes longer than ``patience`` (s) is done again by the next one."""
    end = time.monotonic() + patience
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
        time.sleep(0.02)
    query.stop()


def _told(error: str, archive: str) -> Exception:
    """What ended the query: one line of all that Spark says of it."""
    lines = [line.strip() for line in error.splitlines()]
    ours = next((line for line in reversed(lines) if line.startswith(("penstock.errors.", *AWAY))), "")
    if ours.startswith(AWAY):
        return Disconnected(ours.partition(": ")[2])
    return QueryFailed(ours.removeprefix("penstock.errors.") or reason(error, archive))
