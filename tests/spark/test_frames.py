"""What a frame of any source reads: all actions on one ``load()`` are apart, and each reads what is there then."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark import SHOP, DataFrame, SparkSession, add_events

SOURCES: Any = {
    "events": ("redis-stream", {"keys": "*:events"}, "id"),
    "entries": ("redis-stream", {"keys": "entries:*", "entries": "raw"}, "fields['id']"),
    "list": ("redis-list", {"key": "list", "text": "true"}, "value"),
    "hash": ("redis-hash", {"keys": "*", "keyPrefix": "hash:"}, "fields['id']"),
    "string": ("redis-string", {"keys": "*", "keyPrefix": "string:"}, "value"),
    "set": ("redis-set", {"keys": "*", "keyPrefix": "set:"}, "member"),
    "zset": ("redis-zset", {"keys": "*", "keyPrefix": "zset:"}, "member"),
    "json": (
        "redis-json",
        {"keys": "*", "keyPrefix": "json:", "storage": "string"},
        "get_json_object(document, '$.id')",
    ),
}
"""By what is read: the format, its options, and the id in a row."""


def add(redis: Any, *ids: int) -> None:
    """Write ids for every source; each tenth has a stream of its own."""
    for id in ids:
        redis.xadd(f"shop{id // 10}:events", {"event": "done" if id % 2 else "dead", "id": id})
        redis.xadd(f"entries:{id // 10}", {"id": id})
        redis.lpush("list", id)
        redis.hset(f"hash:{id}", "id", id)
        redis.set(f"string:{id}", id)
        redis.sadd(f"set:{id}", id)
        redis.zadd(f"zset:{id}", {str(id): 1})
        redis.set(f"json:{id}", json.dumps({"id": id}))


def load(spark: "SparkSession", url: str, what: str, **more: str) -> "DataFrame":
    from pyspark.sql import functions as F

    format_, options, id = SOURCES[what]
    frame = spark.read.format(format_).options(url=url, **options, **more).load()
    return frame.select(F.expr(id).cast("long").alias("n"))


def numbers(frame: "DataFrame") -> list[int]:
    return sorted(row.n for row in frame.collect())


@pytest.mark.parametrize("what", SOURCES)
def test_each_action_reads_what_is_there(spark: "SparkSession", shop: Any, redis_url: str, what: str) -> None:
    frame = load(spark, redis_url, what)
    assert numbers(frame) == []
    add(shop, *range(1, 10))
    assert numbers(frame) == [*range(1, 10)]
    divided = load(spark, redis_url, what, partitions="3")
    assert divided.count() == 9
    add(shop, *range(10, 15))
    assert numbers(frame) == numbers(divided) == [*range(1, 15)]
    shop.flushall()
    assert numbers(frame) == numbers(divided) == []


@pytest.mark.parametrize("what", SOURCES)
def test_no_filter_stays_for_another_query(spark: "SparkSession", shop: Any, redis_url: str, what: str) -> None:
    add(shop, *range(1, 10))
    format_, options, id = SOURCES[what]
    frame = spark.read.format(format_).options(url=redis_url, **options).load()
    assert frame.where(f"{id} in ('2', '3')").count() == 2
    assert frame.count() == 9
    assert frame.where(f"{id} = '2'").union(frame.where(f"{id} = '3'")).count() == 2
    both = [frame.where(wanted).selectExpr(f"{id} as n") for wanted in (f"{id} in ('2', '3')", f"{id} in ('3', '4')")]
    assert both[0].join(both[1], "n").count() == 1
    frame.createOrReplaceTempView("shared")
    kept = spark.sql(f"select * from shared where {id} = '5'").cache()
    try:
        assert kept.count() == 1
        assert spark.sql("select * from shared").count() == 9
    finally:
        kept.unpersist()


def test_queries_of_one_frame_are_apart(spark: "SparkSession", shop: Any, redis_url: str, tmp_path: Path) -> None:
    add(shop, *range(1, 10))
    frame = spark.readStream.format("redis-stream").options(url=redis_url, keys="*:events").load()
    for name, wanted in (("done", 5), ("all", 9)):
        rows = frame.where("event = 'done'") if name == "done" else frame
        query = (
            rows.writeStream.format("parquet")
            .options(path=str(tmp_path / name), checkpointLocation=str(tmp_path / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None
        assert spark.read.parquet(str(tmp_path / name)).count() == wanted


def test_spark_still_shares_one_reader_among_all_scans_of_a_frame(spark: "SparkSession") -> None:
    """If this fails, this version of Spark plans each scan by itself: then sources may have ``pushFilters`` again.

    Let docs/spark.md, "What a frame reads", say so, and ``pushFilters`` set what the options ``namespaces`` and
    ``events`` set. ``partitions`` may then plan what ``read`` reads.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        pushed = 0

        def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
            self.pushed = len(filters)
            return iter(filters)

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(self.pushed)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (partition.value,)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "shared-reader"

        def schema(self) -> str:
            return "filters int"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "true")
    try:
        spark.dataSource.register(Source)
        frame = spark.read.format("shared-reader").load()
        filtered: Callable[[], Any] = frame.where("filters >= 0").collect
        assert filtered()[0].filters > 0
        assert frame.collect()[0].filters > 0, "Spark has planned a scan without the filters of another one"
    finally:
        spark.conf.set(setting, str(before))


def test_options_choose_namespaces_and_events(spark: "SparkSession", shop: Any, redis_url: str, tmp_path: Path) -> None:
    add(shop, *range(1, 25))
    shop.xadd("shop2:events", {"temperature": 20})

    def read(**options: str) -> list[str | None]:
        rows = spark.read.format("redis-stream").options(url=redis_url, **options).load().collect()
        return sorted((row.id or "malformed" for row in rows), key=lambda id: (len(id), id))

    assert read(namespaces="shop0,none") == [str(id) for id in range(1, 10)]
    assert read(namespaces="shop[01]") == [str(id) for id in range(1, 20)]
    assert read(keys="*:events", namespaces="shop1", events="dead") == ["10", "12", "14", "16", "18"]
    assert read(keys="*:events", namespaces="shop2", events="dead,late") == ["20", "22", "24", "malformed"]
    stream = spark.readStream.format("redis-stream").options(url=redis_url, namespaces="shop0", events="dead").load()
    query = stream.writeStream.format("memory").queryName("dead").trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert sorted(row.id for row in spark.table("dead").collect()) == ["2", "4", "6", "8"]


def test_entries_sort_by_their_numbers(spark: "SparkSession", shop: Any, redis_url: str) -> None:
    for id in ("999-7", "1000-9", "1000-10", "1000-18446744073709551615"):
        shop.xadd("shop:events", {"event": "done", "id": id}, id=id)
    shop.xadd("shop:events", {"temperature": 20}, id="9223372036854775808-0")
    for more, text in (({}, "id"), ({"entries": "raw"}, "fields['id']")):
        frame = spark.read.format("redis-stream").options(url=redis_url, keys="shop:events", **more).load()
        rows = frame.orderBy("entry_ms", "entry_sequence").selectExpr("entry", f"{text} as text").collect()
        assert [row.text for row in rows] == ["999-7", "1000-9", "1000-10", "1000-18446744073709551615", None]
        assert rows[-1].entry == "9223372036854775808-0"
        assert frame.where("entry_ms = 1000 and entry_sequence > 10").count() == 1
        assert frame.where("(entry_ms, entry_sequence) > (1000L, 9L)").count() == 3


def test_a_long_stream_is_read_to_its_end_of_then(
    monkeypatch: pytest.MonkeyPatch, shop: Any, redis_url: str, spark: "SparkSession"
) -> None:
    import pickle

    from penstock.spark.sources.streams import BatchReader

    for kind, added in (("events", "number"), ("raw", "entry")):
        monkeypatch.setattr(f"penstock.spark.sources.{kind}.SPLIT", 100)
        shop.flushall()
        add_events(shop, 4_000, each=10)
        planned = BatchReader({"url": redis_url, "keys": "*:events", "entries": kind, "minPartitions": "4"})
        parts = planned.partitions()
        assert len(parts) == 4

        def read(planned: Any = planned, parts: Any = parts, added: str = added) -> int:
            batches = [batch for part in parts for batch in pickle.loads(pickle.dumps(planned)).read(part)]
            found = [value for batch in batches for value in batch.column(added).to_pylist()]
            assert len(found) == len(set(found))
            return len(found)

        each = 1 if kind == "events" else 10
        assert read() == 4_000 / each
        add_events(shop, 500, start=4_001, each=10)
        shop.xtrim(SHOP.events, minid=shop.xrange(SHOP.events, count=2)[1][0], approximate=False)
        assert read() == 4_490 / each
        shop.xadd("new:events", {"event": "done", "id": 1})
        assert read() == 4_490 / each + 1
