"""Figures of Spark reading streams and writing Parquet, compared with one bare process that does the same."""

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.archive import SHOP, write_events
from bench.figures import Figure
from bench.testbed import Testbed
from penstock.spark.archive import WRITING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def _spark() -> "Iterator[SparkSession]":
    from penstock.spark.session import session

    spark = session("local[2]", "2g")
    try:
        yield spark
    finally:
        spark.stop()


def reading(bed: Testbed, rounds: int, events: int) -> list[Figure]:
    """Measure reading a stream into Arrow and into Parquet with Spark and with one bare process, alternating."""
    figures = []
    with _spark() as spark, tempfile.TemporaryDirectory() as place:
        for entry, what in ((1, "one an entry"), (100, "packed, as the services write them")):
            bed.redis.flushall()
            write_events(bed.redis, events, entry=entry)
            read, parquet = _in_turns(bed, spark, rounds, events, Path(place))
            name = f"{events:,} events ({what})"
            figures += [
                _ratio(f"batch read of {name} into Arrow, bare XRANGE's time / Spark's", events, read, 0.7),
                _ratio(f"{name} to Parquet, bare Python's time / Spark's", events, parquet, 0.8),
            ]
    return figures


Turn = tuple[float, float, float]
"""Seconds of the bare process, of Spark, and of Spark with nothing to read, which is its own overhead."""


def _in_turns(
    bed: Testbed, spark: "SparkSession", rounds: int, events: int, place: Path
) -> tuple[list[Turn], list[Turn]]:
    """Return the turns of reading alone and of writing Parquet."""
    import pyarrow as pa

    from penstock.spark.decode import decode_entries

    frame = spark.read.format("redis-stream").options(url=bed.url, keys=SHOP.events).load()
    entries = [entry for page in islice(_pages(bed), 2) for entry in page]
    rows = decode_entries(SHOP.namespace, entries)[0].take(
        pa.array(range(10_000))
    )  # a slice would be sent with all the rest
    ready = _ready(spark, rows.append_column("timeout", pa.repeat(10.0, len(rows))), events)
    assert frame.count() == ready.count() == events  # also warms up

    def into_arrow(rows: "DataFrame") -> float:
        return _seconds(lambda: rows.write.format("noop").mode("overwrite").save())

    def into_parquet(rows: "DataFrame") -> float:
        writer = rows.write.mode("overwrite").options(**WRITING)
        return _seconds(lambda: writer.parquet(f"{place}/spark"))

    read, parquet = [], []
    for _ in range(rounds):
        spent = into_arrow(frame), into_arrow(ready)
        read.append((_seconds(lambda: [len(page) for page in _pages(bed)]), *spent))
        spent = into_parquet(frame), into_parquet(ready)
        parquet.append((_seconds(lambda: _bare_parquet(bed, place / "bare.parquet")), *spent))
    return read, parquet


def _ready(spark: "SparkSession", batch: Any, events: int) -> "DataFrame":
    """Return a frame of ``events`` rows that two workers produce without reading: ``batch`` again and again."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from penstock.spark.streams import DDL

    tasks = 2

    class Ready(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(task) for task in range(tasks)]

        def read(self, _: Any) -> Iterator[Any]:
            for _ in range(events // tasks // batch.num_rows):
                yield batch

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            return DDL

        def reader(self, schema: Any) -> Ready:
            return Ready()

    spark.dataSource.register(Source)
    return spark.read.format("ready").load()


def _ratio(name: str, events: int, turns: Sequence[Turn], limit: float) -> Figure:
    bare, ours, ready = (f"{events / statistics.median(column) / 1000:,.0f} k/s" for column in zip(*turns, strict=True))
    note = f"{ours} against {bare}; Spark with nothing to read: {ready}"
    return Figure(name, "x", [bare / ours for bare, ours, _ in turns], limit, at_least=True, note=note)


def _seconds(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _pages(bed: Testbed) -> Iterator[Any]:
    """Yield pages of the entries, read by hiredis alone."""
    connection = bed.redis.connection_pool.get_connection()
    try:
        after = "-"
        while True:
            connection.send_command("XRANGE", SHOP.events, after, "+", "COUNT", 5_000)
            page = connection.read_response()
            if not page:
                return
            yield page
            after = "(" + page[-1][0].decode()
    finally:
        bed.redis.connection_pool.release(connection)


def _bare_parquet(bed: Testbed, place: Path) -> None:
    import pyarrow.parquet as pq

    from penstock.spark.decode import SCHEMA, decode_entries

    level = int(WRITING["parquet.compression.codec.zstd.level"])
    with pq.ParquetWriter(place, SCHEMA, compression="zstd", compression_level=level) as writer:
        for page in _pages(bed):
            for batch in decode_entries(SHOP.namespace, page):
                writer.write_batch(batch)
