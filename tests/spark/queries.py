"""Queries from each kind of source to each kind of sink, for tests that kill them.

``python -m tests.spark.queries URL DIRECTORY`` waits for a line of input, then runs all until it is killed and restarts
those that fail. It prints a line for each start and each failure.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES: Final = ("events to list", "list to list", "entries to hashes", "list to stream")


def started(spark: "SparkSession", name: str, url: str, place: Path, most: int, *, ends: bool = False) -> Any:
    """Start the query ``name``, with its checkpoint in ``place`` and about ``most`` rows a micro-batch; return it.

    If ``ends``, the query ends after the available rows. Return only after its first progress or failure: if several
    start at once on a busy machine, Python starts so slowly that Spark gives up.
    """
    limits = {"redis-list": "maxMessagesPerTrigger", "redis-stream": "maxEventsPerTrigger"}

    def read(format_: str, **options: str) -> "DataFrame":
        return spark.readStream.format(format_).options(url=url, **options, **{limits[format_]: str(most)}).load()

    match name:
        case "events to list":
            rows, sink, to = read("redis-stream", keys="shop:events").select("id"), "redis-list", {"key": "out:events"}
            rows = rows.withColumnRenamed("id", "value")
        case "list to list":
            rows, sink, to = read("redis-list", key="in"), "redis-list", {"key": "out:list"}
        case "entries to hashes":
            each_and_all = "explode(array('seen', concat('seen:', fields['n']))) key"
            rows = read("redis-stream", keys="numbers", entries="raw").selectExpr(each_and_all, "1L count")
            sink, to = "redis-hash", {"mode": "add"}
        case "list to stream":
            rows = read("redis-list", key="jobs", text="true").selectExpr("value n")
            sink, to = "redis-stream", {"key": "out:stream"}
        case _:
            raise LookupError(name)
    place = place / name.replace(" ", "-")
    writer = rows.writeStream.format(sink).options(url=url, checkpointLocation=str(place), **to)
    query = (writer.trigger(availableNow=True) if ends else writer).start()
    while query.isActive and not query.lastProgress:
        time.sleep(0.02)
    return query


def keep(running: dict[str, Any], spark: "SparkSession", url: str, place: Path, most: int) -> None:
    """Start the queries that are missing or have failed."""
    for name in NAMES:
        query = running.get(name)
        if query is None or not query.isActive:
            if query:
                print(f"failed {name}: {query.exception()}", flush=True)
            running[name] = started(spark, name, url, place, most)
            print(f"started {name}", flush=True)


def run(url: str, place: Path) -> None:
    spark = session(
        memory="512m",
        spark_local_dir=str(place / "local"),
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    print("ready", flush=True)
    sys.stdin.readline()
    running: dict[str, Any] = {}
    while True:
        keep(running, spark, url, place, most=100)
        time.sleep(0.05)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
