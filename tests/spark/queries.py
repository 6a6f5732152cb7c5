"""Queries from each kind of source to each kind of sink, for tests that kill them.

``python -m tests.spark.queries URL DIRECTORY NAME...`` waits for a line of input, then runs those that are named until
it is killed, and restarts those that fail. It prints a line for each start and each failure.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from penstock.spark.session import session
from tests.spark import DataFrame, SparkSession

NAMES: Final = ("events to list", "list to list", "entries to hashes", "list to stream")
CHANGED: Final = "hashes to list"
TABLES: Final = ("entries to strings", "entries to set", "entries to sorted set", "entries to documents")


def started(spark: "SparkSession", name: str, url: str, place: Path, most: int, *, ends: bool = False) -> Any:
    """Start the query ``name``, with its checkpoint in ``place`` and about ``most`` rows a micro-batch; return it.

    If ``ends``, the query ends after the available rows. Return only after its first progress or failure: if several
    start at once on a busy machine, Python starts so slowly that Spark gives up.
    """

    def read(format_: str, **options: str) -> "DataFrame":
        return spark.readStream.format(format_).options(url=url, **options, maxOffsetsPerTrigger=str(most)).load()

    def entries(*columns: str) -> "DataFrame":
        return read("redis-stream", keys="numbers", entries="raw").selectExpr(*columns)

    match name:
        case "events to list":
            rows, sink, to = read("redis-stream", keys="shop:events").select("id"), "redis-list", {"key": "out:events"}
            rows = rows.withColumnRenamed("id", "value")
        case "list to list":
            rows, sink, to = read("redis-list", key="in"), "redis-list", {"key": "out:list"}
        case "entries to hashes":
            each_and_all = "explode(array('seen', concat('seen:', fields['n']))) key"
            rows = entries(each_and_all, "1L count")
            sink, to = "redis-hash", {"mode": "add"}
        case "list to stream":
            rows = read("redis-list", key="jobs", text="true").selectExpr("value n")
            sink, to = "redis-stream", {"key": "out:stream"}
        case "hashes to list":
            rows = read("redis-hash", keys="version:*", versionField="n").selectExpr("fields['n'] value")
            sink, to = "redis-list", {"key": "out:changed"}
        case "entries to strings":
            rows, sink, to = entries("fields['n'] key", "fields['n'] value"), "redis-string", {"keyPrefix": "string:"}
        case "entries to set":
            rows, sink, to = entries("'set' key", "fields['n'] member"), "redis-set", {"keyPrefix": "out:"}
        case "entries to sorted set":
            columns = ("'zset' key", "fields['n'] member", "double(fields['n']) score")
            rows, sink, to = entries(*columns), "redis-zset", {"keyPrefix": "out:"}
        case "entries to documents":
            rows, sink = entries("fields['n'] key", "bigint(fields['n']) n"), "redis-json"
            to = {"keyPrefix": "document:", "storage": "string"}
        case _:
            raise LookupError(name)
    place = place / name.replace(" ", "-")
    writer = rows.writeStream.format(sink).options(url=url, checkpointLocation=str(place), **to)
    if ends or name == CHANGED:  # which searches all keys at each trigger
        writer = writer.trigger(availableNow=True) if ends else writer.trigger(processingTime="200 milliseconds")
    query = writer.start()
    while query.isActive and not query.lastProgress:
        time.sleep(0.02)
    return query


def keep(
    running: dict[str, Any], spark: "SparkSession", url: str, place: Path, most: int, names: Sequence[str]
) -> None:
    """Start the queries that are missing or have failed."""
    for name in names:
        query = running.get(name)
        if query is None or not query.isActive:
            if query:
                print(f"failed {name}: {query.exception()}", flush=True)
            running[name] = started(spark, name, url, place, most)
            print(f"started {name}", flush=True)


def run(url: str, place: Path, names: Sequence[str]) -> None:
    spark = session(
        memory="512m",
        spark_local_dir=str(place / "local"),
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    print("ready", flush=True)
    sys.stdin.readline()
    running: dict[str, Any] = {}
    while True:
        keep(running, spark, url, place, 100, names)
        time.sleep(0.05)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
