"""Strings, sets and sorted sets as tables: what is written is read again, and a repeated batch changes nothing."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.errors import PenstockError, WrongOption, WrongType
from penstock.spark.options import connect
from tests.spark import SparkSession, schema_of
from tests.support.redis_cluster import two_nodes

TABLES: Any = {
    "redis-string": ("key string, value string", [("one", "å"), ("two", "")]),
    "redis-set": ("key string, member string", [("one", "a"), ("one", "b"), ("two", "a")]),
    "redis-zset": (
        "key string, member string, score double",
        [("one", "a", 0.1), ("one", "b", -1e300), ("two", "a", 3.0)],
    ),
}


@pytest.fixture(autouse=True, scope="module")
def started(spark: "SparkSession") -> None:
    """Start Spark, which is needed to parse a DDL."""


def source_of(format_: str, url: str, **options: str) -> Any:
    from penstock.spark.keys import RedisSet, RedisSortedSet, RedisString

    kinds = {kind.name(): kind for kind in (RedisString, RedisSet, RedisSortedSet)}
    return kinds[format_]({"url": url, **options})


def rows_of(format_: str, url: str, ddl: str = "", **options: str) -> list[tuple[Any, ...]]:
    source = source_of(format_, url, **options)
    reader = source.reader(schema_of(ddl or source.schema()))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def write(format_: str, url: str, ddl: str, rows: list[tuple[Any, ...]], **options: str) -> None:
    names = [word.split()[0] for word in ddl.split(", ")]
    batch = pa.RecordBatch.from_pydict(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    writer = source_of(format_, url, **options).streamWriter(schema_of(ddl), False)
    writer.commit([writer.write(iter([batch]))], 0)


@pytest.mark.parametrize("format_", TABLES)
def test_what_is_written_twice_is_read_once(spark: "SparkSession", here: Any, redis_url: str, format_: str) -> None:
    ddl, rows = TABLES[format_]
    here.hset("mine:hash", "n", 1)
    here.set("mine:[x", "outside")
    for _ in range(2):
        frame = spark.createDataFrame(rows, ddl)
        frame.write.format(format_).options(url=redis_url, keyPrefix="mine:*").mode("append").save()
    assert sorted(here.keys("mine:[*]*")) == [b"mine:*one", b"mine:*two"]
    read = spark.read.format(format_).options(url=redis_url, keys="*,none", keyPrefix="mine:*", partitions="2")
    assert sorted(map(tuple, read.load().collect())) == rows
    exact = read.option("text", "false").load().collect()
    assert sorted(bytes(row[1]) for row in exact) == sorted(row[1].encode() for row in rows)


@pytest.mark.parametrize("format_", TABLES)
def test_tables_of_a_cluster_with_a_time_to_live(format_: str) -> None:
    ddl, rows = TABLES[format_]
    many = [(f"{row[0]}:{number}", *row[1:]) for number in range(100) for row in rows]
    with two_nodes() as nodes:
        url = f"redis+cluster://127.0.0.1:{nodes[0].server.port}"
        write(format_, url, ddl, many, ttl="600")
        assert rows_of(format_, url, keys="*") == sorted(many)
        assert all(node.client.dbsize() > 10 for node in nodes)
        with connect(url) as client:
            assert all(0 < client.ttl(key) <= 600 for key in client.scan_iter())


def test_members_of_large_sets_come_once(here: Any, redis_url: str) -> None:
    members = [f"m{number}" for number in range(20_000)]
    here.sadd("large", *members)
    here.zadd("ranked", {member: place for place, member in enumerate(members)})
    assert rows_of("redis-set", redis_url, keys="large,small") == sorted(("large", member) for member in members)
    found = rows_of("redis-zset", redis_url, keys="ranked")
    assert found == sorted(("ranked", member, float(place)) for place, member in enumerate(members))


def test_a_query_writes_a_table(spark: "SparkSession", here: Any, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("one,a,1\ntwo,b,2\n")
    frame = spark.readStream.schema("key string, member string, score double").csv(str(tmp_path / "in"))
    sink = frame.writeStream.format("redis-zset").options(
        url=redis_url, checkpointLocation=str(tmp_path / "checkpoint")
    )
    assert sink.trigger(availableNow=True).start().awaitTermination(120)
    assert here.zrange("one", 0, -1, withscores=True) == [(b"a", 1.0)]


def test_wrong_types_values_and_columns_are_reported(here: Any, redis_url: str) -> None:
    here.hset("hash", "n", 1)
    here.set("bytes", b"\xff")
    for format_, expected in (("redis-string", "string"), ("redis-set", "set"), ("redis-zset", "zset")):
        ddl, rows = TABLES[format_]
        with pytest.raises(WrongType, match=f"hash holds a hash, expected a {expected}"):
            rows_of(format_, redis_url, keys="hash")
        if format_ != "redis-string":
            with pytest.raises(WrongType, match=f"hash holds a hash, expected a {expected}"):
                write(format_, redis_url, ddl, [("hash", *rows[0][1:])])
            with pytest.raises(WrongOption, match=f"{format_}: mode overwrite .*: members are added"):
                source_of(format_, redis_url).writer(schema_of(ddl), overwrite=True)
        with pytest.raises(WrongOption, match=f"{format_}: columns key string: expected {ddl}"):
            source_of(format_, redis_url).writer(schema_of("key string"), overwrite=False)
        with pytest.raises(WrongOption, match=f"{format_}: schema: key string: expected {ddl}"):
            rows_of(format_, redis_url, "key string", keys="x")
    with pytest.raises(PenstockError, match=r"bytes: a value is no UTF-8: b'.xff'. Read it with text=false"):
        rows_of("redis-string", redis_url, keys="bytes")
    with pytest.raises(PenstockError, match="redis-string: column key: a row has null"):
        write("redis-string", redis_url, "key string, value string", [(None, "x")])


def test_hashes_have_a_prefix_too(spark: "SparkSession", here: Any, redis_url: str) -> None:
    frame = spark.createDataFrame([("one", 1), ("two", 2)], "key string, n long")
    frame.write.format("redis-hash").options(url=redis_url, keyPrefix="user:").mode("append").save()
    assert sorted(here.keys()) == [b"user:one", b"user:two"]
    read = spark.read.format("redis-hash").options(url=redis_url, keys="t*", keyPrefix="user:")
    assert [tuple(row) for row in read.schema("key string, n long").load().collect()] == [("two", 2)]
