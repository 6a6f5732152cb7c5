"""Figures of Spark reading streams and writing Parquet, compared with one bare process that does the same."""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.archive import SHOP, bare_parquet, pages, write_events
from bench.figures import Figure
from bench.spark import into_nothing, seconds, spark_session
from bench.testbed import Testbed
from penstock.core.script import Script
from penstock.spark.archive import WRITING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGUN: Final = 1_700_000_000
"""When the first entry was written (s since the epoch)."""
ADD_ENTRIES: Final = Script(
    "add_entries.lua",
    f"""-- Write entries of another program, at times of the past.
--
-- KEYS stream  stream  gets them
-- ARGV first   the number of the first one
-- ARGV many    how many
-- ARGV step    milliseconds between two of them
-- Returns nothing. Run twice: the second run fails.
for number = first, first + many - 1 do
  redis.call('XADD', stream, string.format('%d-1', {BEGUN}000 + number * step),
    'order', number, 'customer', 'customer-' .. number % 997, 'total', (number % 10007) / 100, 'state', 'paid')
end
""",
)
ADD_HISTORY: Final = Script(
    "add_history.lua",
    f"""-- Write events of the past, one an entry.
--
-- KEYS stream  stream  gets them
-- ARGV first   the number of the first one, from 0 on
-- ARGV many    how many
-- ARGV step    milliseconds between two of them
-- Returns nothing. Run twice: the second run fails.
for number = first, first + many - 1 do
  local at = string.format('%d', {BEGUN}000 + number * step)
  redis.call('XADD', stream, at .. '-1', 'first', number + 1, 'count', 1, 'event', 'done', 'id', number, 'xid',
    'x' .. number, 'at', at, 'queue', 'shop:work', 'service', '7', 'attempt', 1, 'seconds', (number % 997) / 100)
end
""",
)


def reading(bed: Testbed, rounds: int, events: int) -> list[Figure]:
    """Measure reading a stream into Arrow and into Parquet with Spark and with one bare process, alternating."""
    figures = []
    with spark_session() as spark, tempfile.TemporaryDirectory() as place:
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


def splitting(bed: Testbed, rounds: int, entries: int) -> Figure:
    """Measure reading a raw stream with one partition and with four, alternating."""
    for first in range(0, entries, 1_000):
        named = {"first": first, "many": min(1_000, entries - first), "step": 1}
        bed.redis.execute_command(*ADD_ENTRIES.by_source(stream="bench:raw", **named))
    with spark_session() as spark:
        reader = spark.read.format("redis-stream").options(url=bed.url, keys="bench:raw", entries="raw")
        frames = [reader.option("minPartitions", parts).load() for parts in (1, 4)]
        for frame in frames:
            assert frame.count() == entries  # also warms up
        turns = [[into_nothing(frame) for frame in frames] for _ in range(rounds)]
    bed.redis.flushall()
    one, four = (f"{entries / statistics.median(column) / 1000:,.0f} k/s" for column in zip(*turns, strict=True))
    name = f"raw stream of {entries:,} entries, 1 partition's time / that of 4"
    return Figure(name, "x", [one / four for one, four in turns], 1.5, at_least=True, note=f"{four} against {one}")


def one_hour(bed: Testbed, rounds: int, events: int) -> Figure:
    """Measure a batch over one hour of a year of events: chosen by options, and all events read and then filtered."""
    from pyspark.sql import functions as F

    step = 365 * 86_400_000 // events
    for first in range(0, events, 10_000):
        named = {"first": first, "many": min(10_000, events - first), "step": step}
        bed.redis.execute_command(*ADD_HISTORY.by_source(stream=SHOP.events, **named))
    begin, end = (BEGUN * 1000 + step * events // 2 + hour * 3_600_000 for hour in (0, 1))
    with spark_session() as spark:
        reader = spark.read.format("redis-stream").options(url=bed.url, keys=SHOP.events)
        read = reader.load().where((F.unix_millis("at") >= begin) & (F.unix_millis("at") < end))
        chosen = reader.options(startingTimestamp=begin, endingTimestamp=end).load()
        assert chosen.count() == read.count() > 0
        turns = [(into_nothing(chosen), into_nothing(read)) for _ in range(rounds)]
        found = chosen.count()
    bed.redis.flushall()
    hour, year = (statistics.median(column) for column in zip(*turns, strict=True))
    return Figure(
        f"batch of one hour out of {events:,} events, all read and filtered / chosen by options",
        "x",
        [year / hour for hour, year in turns],
        20,
        at_least=True,
        note=f"{found:,} events in {hour:.2f} s against {year:.1f} s",
    )


Turn = tuple[float, float, float]
"""Seconds of the bare process, of Spark, and of Spark with nothing to read, which is its own overhead."""


def _in_turns(
    bed: Testbed, spark: "SparkSession", rounds: int, events: int, place: Path
) -> tuple[list[Turn], list[Turn]]:
    """Return the turns of reading alone and of writing Parquet."""
    import pyarrow as pa

    from penstock.spark.decode import decode_entries

    frame = spark.read.format("redis-stream").options(url=bed.url, keys=SHOP.events).load()
    entries = [entry for page in islice(pages(bed), 2) for entry in page]
    rows = decode_entries(SHOP.namespace, entries)[0].take(
        pa.array(range(10_000))
    )  # a slice would be sent with all the rest
    ready = _ready(spark, rows.append_column("timeout", pa.repeat(10.0, len(rows))), events)
    assert frame.count() == ready.count() == events  # also warms up

    def into_parquet(rows: "DataFrame") -> float:
        writer = rows.write.mode("overwrite").options(**WRITING)
        return seconds(lambda: writer.parquet(f"{place}/spark"))

    read, parquet = [], []
    for _ in range(rounds):
        spent = into_nothing(frame), into_nothing(ready)
        read.append((seconds(lambda: [len(page) for page in pages(bed)]), *spent))
        spent = into_parquet(frame), into_parquet(ready)
        parquet.append((seconds(lambda: bare_parquet(bed, place / "bare.parquet")), *spent))
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
