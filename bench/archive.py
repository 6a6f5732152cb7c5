"""The figures of the pipeline, each against its reference in the same run where there is one."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.figures import Figure
from bench.stage import Stage
from penstock.keys import Keys
from penstock.lua import Script
from penstock.spark.archive import WRITING
from tests.harness import Service, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOP: Final = Keys("bench:shop")
PIPELINE: Final = Keys("bench:pipeline")
MILLION: Final = 1_000_000
TELL: Final = Script(
    "tell.lua",
    """-- Tell of messages that are done, as a monitor does.
--
-- WITH events
-- ARGV from     the first id
-- ARGV many     how many
-- ARGV at       when (ms)
-- ARGV history  most events to keep
-- Returns nothing. Run twice: they are told twice.
for id = from, from + many - 1 do
  report('done', string.format('%d', id), redis.sha1hex(id), 'shop:work', '7', 1, (id % 997) / 100)
end
tell(at, tonumber(history))
""",
)


def tell(redis: Any, many: int, *, keys: Keys = SHOP, entry: int = 1_000, first: int = 1) -> None:
    """``many`` events, in entries of a hundred, or of ``entry`` where that is less; 100 a millisecond."""
    begun = int(time.time() * 1000) - many // 100
    redis.hset(keys.policy, "messageTimeout", 10)
    with redis.pipeline(transaction=False) as wire:
        for start in range(first, first + many, entry):
            named = {"from": start, "many": min(entry, first + many - start), "history": 2**40}
            wire.execute_command(*TELL.by_source(**keys.telling, at=begun + (start - first) // 100, **named))
            if len(wire) == 200:
                wire.execute()
        wire.execute()


@contextmanager
def _spark() -> "Iterator[SparkSession]":
    from penstock.spark.session import session

    spark = session("local[2]", "2g")
    try:
        yield spark
    finally:
        spark.stop()


def reading(stage: Stage, rounds: int, events: int) -> list[Figure]:
    """A stream into Spark as Arrow, and into Parquet, against one bare process, in turns."""
    figures = []
    with _spark() as spark, tempfile.TemporaryDirectory() as place:
        for entry, what in ((1, "one an entry"), (100, "packed, as the services tell them")):
            stage.redis.flushall()
            tell(stage.redis, events, entry=entry)
            read, parquet = _in_turns(stage, spark, rounds, events, Path(place))
            name = f"{events:,} events ({what})"
            figures += [
                _ratio(f"batch read of {name} into Arrow, bare XRANGE's time / Spark's", events, read, 0.7),
                _ratio(f"{name} to Parquet, bare Python's time / Spark's", events, parquet, 0.8),
            ]
    return figures


Turn = tuple[float, float, float]
"""Seconds of the bare process, of Spark, and of Spark where nothing is to be read: all else is its own."""


def _in_turns(
    stage: Stage, spark: "SparkSession", rounds: int, events: int, place: Path
) -> tuple[list[Turn], list[Turn]]:
    """Of reading alone and of Parquet."""
    import pyarrow as pa

    from penstock.spark.decode import decoded

    frame = spark.read.format("redis-stream").options(url=stage.url, keys=SHOP.events).load()
    entries = [entry for page in islice(_pages(stage), 2) for entry in page]
    rows = decoded(SHOP.namespace, entries)[0].take(pa.array(range(10_000)))  # a slice would be sent with all the rest
    ready = _ready(spark, rows.append_column("timeout", pa.repeat(10.0, len(rows))), events)
    assert frame.count() == ready.count() == events  # which warms up

    def into_arrow(rows: "DataFrame") -> float:
        return _seconds(lambda: rows.write.format("noop").mode("overwrite").save())

    def into_parquet(rows: "DataFrame") -> float:
        writer = rows.write.mode("overwrite").options(**WRITING)
        return _seconds(lambda: writer.parquet(f"{place}/spark"))

    read, parquet = [], []
    for _ in range(rounds):
        spent = into_arrow(frame), into_arrow(ready)
        read.append((_seconds(lambda: [len(page) for page in _pages(stage)]), *spent))
        spent = into_parquet(frame), into_parquet(ready)
        parquet.append((_seconds(lambda: _bare_parquet(stage, place / "bare.parquet")), *spent))
    return read, parquet


def _ready(spark: "SparkSession", batch: Any, events: int) -> "DataFrame":
    """``events`` rows that two workers hand to Spark without reading any: ``batch`` again and again."""
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


def _pages(stage: Stage) -> Iterator[Any]:
    """The entries, through hiredis and nothing else."""
    connection = stage.redis.connection_pool.get_connection()
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
        stage.redis.connection_pool.release(connection)


def _bare_parquet(stage: Stage, place: Path) -> None:
    import pyarrow.parquet as pq

    from penstock.spark.decode import SCHEMA, decoded

    level = int(WRITING["parquet.compression.codec.zstd.level"])
    with pq.ParquetWriter(place, SCHEMA, compression="zstd", compression_level=level) as writer:
        for page in _pages(stage):
            for batch in decoded(SHOP.namespace, page):
                writer.write_batch(batch)


class Run:
    """A pipeline over the streams of ``namespaces``, and what it had archived when."""

    def __init__(self, stage: Stage, namespaces: Sequence[Keys], **settings: object) -> None:
        self._stage = stage
        self.place = Path(tempfile.mkdtemp(prefix="penstock-bench-archive-"))
        own = {"redis": stage.url, "redis_namespace": PIPELINE.namespace, "archive": self.place / "archive"}
        watch = "[" + ",".join(f'"{keys.namespace}"' for keys in namespaces) + "]"
        self.service = Service("pipeline", self.place / "log", **{**own, "watch": watch, "memory": "2g", **settings})
        self.sights: list[tuple[float, int]] = []
        """Moments (s) at which a micro-batch was done, and how many events were archived then."""

    def __enter__(self) -> "Run":
        self.service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.__exit__(None, None, None)
        shutil.rmtree(self.place, ignore_errors=True)  # Java may take a moment to end

    def until(self, events: int) -> None:
        """Watch until so many are archived."""
        end = time.monotonic() + 1_800
        while not self.sights or self.sights[-1][1] < events:
            count = int(self._stage.redis.hget(PIPELINE.metric("pipeline"), "count") or 0)
            if count and (not self.sights or count > self.sights[-1][1]):
                self.sights.append((time.monotonic(), count))
            alive = self.service.process and self.service.process.poll() is None
            assert alive, self.service.said()
            assert time.monotonic() < end, "not archived in half an hour"
            time.sleep(0.02)

    def rate(self, first: float, last: float) -> float:
        """Events a second between the micro-batches that reached so many events."""
        begin = next(sight for sight in self.sights if sight[1] >= first)
        end = next(sight for sight in self.sights if sight[1] >= last)
        return (end[1] - begin[1]) / (end[0] - begin[0])


def archive(stage: Stage, events: int) -> list[Figure]:
    """A backlog archived without roll-ups: its rate from the second micro-batch on, and whether that stays."""
    tell(stage.redis, events)
    with Run(stage, [SHOP], rollups="false", max_events=events // 10) as run:
        run.until(events)
        rate = run.rate(0, events)
        parts = [run.rate(events * part / 5, events * (part + 1) / 5) for part in range(5)]
    stage.redis.flushall()
    note = "by fifths: " + ", ".join(f"{part / 1000:,.0f} k/s" for part in parts)
    return [
        Figure(f"archive of {events:,} events", "/s", [rate], 150_000, at_least=True, note=note),
        Figure("archive: the last fifth's time / the first one's", "x", [parts[0] / parts[-1]], 1.2),
    ]


def rolling_up(stage: Stage, events: int) -> list[Figure]:
    """The same with roll-ups, and what an event costs when so many are in the archive.

    The first ones cost more, for Java is new: what comes after a restart at the end is measured against them.
    """
    tell(stage.redis, events)
    some = events // 10
    with Run(stage, [SHOP], max_events=events // 40) as run:
        run.until(events)
        rate = run.rate(0, events)
        first, between, last = (1e6 / run.rate(after, after + some) for after in (0, events // 5, events - some))
        run.service.stop()
        tell(stage.redis, some, first=events + 1)
        run.service.start()
        run.until(events + some)
        again = 1e6 / run.rate(events + 1, events + some)
    stage.redis.flushall()
    note = f"{first:.2f} us up to {some:,}, {between:.2f} from {events // 5:,} on, {last:.2f} from {events - some:,} on"
    return [
        Figure(f"archive and roll-ups of {events:,} events", "/s", [rate], 100_000, at_least=True, note=note),
        Figure("cost of an event, the last ones' / those in between", "x", [last / between], 1.2, note=note),
        Figure(
            f"the same after a restart at {events:,} / after the first start",
            "x",
            [again / first],
            1.2,
            note=f"{again:.2f} us against {first:.2f} us",
        ),
    ]


def shards(stage: Stage, rounds: int, events: int) -> Figure:
    """What an event costs in one stream and in eight, in turns."""
    pairs = []
    for _ in range(rounds):
        rates = []
        for number in (1, 8):
            namespaces = [Keys(f"bench:shop{place}") for place in range(number)]
            for keys in namespaces:
                tell(stage.redis, events // number, keys=keys)
            with Run(stage, namespaces, max_events=events // 8) as run:
                run.until(events // number * number)
                rates.append(run.rate(0, events))
            stage.redis.flushall()
        pairs.append(rates)
    note = " against ".join(f"{statistics.median(column) / 1000:,.0f} k/s" for column in zip(*pairs, strict=True))
    return Figure(
        f"cost of an event, {events:,} in 8 streams / in 1", "x", [one / eight for one, eight in pairs], 1.2, note=note
    )


def visible(stage: Stage, rounds: int) -> Figure:
    """From an event's XADD, with nothing else to do, until a roll-up hash of its day tells of it."""
    taken = []
    tell(stage.redis, 1_000)
    with Run(stage, [SHOP]) as run:
        run.until(1_000)
        for turn in range(rounds + 1):
            time.sleep(2 + 0.37 * turn)  # not in step with the trigger
            day = SHOP.rollup(time.strftime("%Y-%m-%d", time.gmtime()))
            before = int(stage.redis.hget(day, "count") or 0)
            begin = time.perf_counter()
            tell(stage.redis, 1, first=2_000 + turn)
            until(lambda day=day, before=before: int(stage.redis.hget(day, "count") or 0) > before, 60, 0.002)  # type: ignore[misc]
            if turn:
                taken.append(time.perf_counter() - begin)
    stage.redis.flushall()
    return Figure("an event, idle, to the roll-up hash of its day", "s", taken, 3)
