"""Hashes as Spark source and sink: reads and writes are complete, and nothing is added twice."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.errors import PenstockError, WrongOption, WrongType
from penstock.spark.options import run
from tests.spark import SparkSession, schema_of


@pytest.fixture(autouse=True, scope="module")
def registered(spark: "SparkSession") -> None:
    from penstock.spark.hashes import RedisHash

    spark.dataSource.register(RedisHash)


def rows_of(url: str, ddl: str | None, **options: str) -> list[dict[str, Any]]:
    from penstock.spark.hashes import RedisHash

    source = RedisHash({"url": url, **options})
    reader = source.reader(schema_of(ddl) if ddl else source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def writer_of(url: str, ddl: str, overwrite: str = "", **options: str) -> Any:
    from penstock.spark.hashes import RedisHash

    return RedisHash({"url": url, **options}).streamWriter(schema_of(ddl), bool(overwrite))


def adder_of(url: str, monkeypatch: pytest.MonkeyPatch, **options: str) -> Any:
    monkeypatch.setattr("penstock.spark.sinks.writers.query_of_task", lambda: "q")
    return writer_of(url, "key string, hits long, seconds double", mode="add", **options)


def hits(*keys: str, count: int = 1, seconds: float | None = None) -> pa.RecordBatch:
    columns = {"key": list(keys), "hits": [count] * len(keys), "seconds": pa.array([seconds] * len(keys), pa.float64())}
    return pa.RecordBatch.from_pydict(columns)


def test_what_is_written_is_read_again_with_a_schema_and_without(
    spark: "SparkSession", here: Any, redis_url: str
) -> None:
    ddl = "name string, hits int, total long, mean double, open boolean, raw binary"
    rows = [("user:1", "å", 1, 2**60, 0.1, True, bytearray(b"\xff\0")), ("user:2", None, -1, None, 1e300, False, None)]
    frame = spark.createDataFrame(rows, ddl.replace("name", "id string, name"))
    frame.write.format("redis-hash").options(url=redis_url, keyColumn="id", ttl="60").mode("append").save()
    assert here.hgetall("user:2") == {b"hits": b"-1", b"mean": b"1e+300", b"open": b"false"}
    assert 0 < here.ttl("user:1") <= 60

    read = spark.read.format("redis-hash").options(url=redis_url, keys="user:*", keyColumn="id", partitions="2")
    found = read.schema(f"{ddl}, id string").load().select(*frame.columns)
    assert sorted(map(tuple, found.collect())) == sorted(rows)


def test_without_a_schema_all_fields_are_one_column_that_can_be_written_back(here: Any, redis_url: str) -> None:
    here.hset("user:1", mapping={"name": "å", "hits": "1"})
    here.set("user:no-hash", "")
    rows = rows_of(redis_url, None, keys="user:*")
    assert rows == [{"key": "user:1", "fields": [("name", "å"), ("hits", "1")]}]

    fields = pa.array([rows[0]["fields"]], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.array(["copy"]), fields], ["key", "fields"])
    writer_of(redis_url, "key string, fields map<string,string>").write(iter([batch]))
    assert here.hgetall("copy") == here.hgetall("user:1")


def test_keys_that_are_not_there_are_no_rows_and_missing_fields_are_null(here: Any, redis_url: str) -> None:
    here.hset("one", "name", "1")
    here.hset("two", "other", "2")
    rows = rows_of(redis_url, "name string, key string", keys="two,none,one")
    assert rows == [{"name": "1", "key": "one"}, {"name": None, "key": "two"}]
    assert rows_of(redis_url, "name string, key string", keys="no:*") == []


def test_set_leaves_other_fields_and_overwrite_does_not(here: Any, redis_url: str) -> None:
    batch = pa.RecordBatch.from_pydict({"key": ["one", "two"], "name": ["new", None]})
    for overwrite, expected in (("", {b"name": b"new", b"other": b"0"}), ("yes", {b"name": b"new"})):
        here.hset("one", mapping={"name": "old", "other": "0"})
        writer_of(redis_url, "key string, name string", overwrite=overwrite).write(iter([batch]))
        assert here.hgetall("one") == expected
    assert not here.exists("two")


def test_a_repeated_batch_adds_nothing(monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str) -> None:
    writer = adder_of(redis_url, monkeypatch, ttl="60")
    many = [f"h:{number}" for number in range(2500)]
    for batch, tasks in ((0, [hits(*many), hits("h:1", seconds=0.5)]), (1, [hits("h:1", seconds=1.25)])):
        for repeated in (tasks, tasks[::-1]):
            writer.commit([writer.write(iter([task])) for task in repeated], batch)
    assert here.hgetall("h:1") == {b"hits": b"3", b"seconds": b"1.75"}
    assert {here.hget(key, "hits") for key in many[2:]} == {b"1"}
    assert 0 < here.ttl("h:2") <= 60
    assert [key for key in here.scan_iter() if not key.startswith(b"h:")] == [b"penstock:spark:q"]


def test_an_interrupted_commit_is_finished_with_its_own_rows(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str
) -> None:
    writer = adder_of(redis_url, monkeypatch)
    many = [f"h:{number}" for number in range(2500)]
    staged = [writer.write(iter([hits(*many)]))]
    calls: list[Any] = []

    def breaks_off(redis: Any, script: Any, /, **named: Any) -> Any:
        calls.append(script.name)
        if len(calls) == 3:
            raise ConnectionError("killed")
        return run(redis, script, **named)

    with monkeypatch.context() as patched:
        for module in ("once", "hashes"):
            patched.setattr(f"penstock.spark.sinks.{module}.run", breaks_off)
        with pytest.raises(ConnectionError):
            writer.commit(staged, 0)
    assert calls == ["decide.lua", "add.lua", "add.lua"]
    assert sum(here.exists(key) for key in many) == 1000

    again = [writer.write(iter([hits(*many[half::2])])) for half in range(2)]
    writer.commit(again, 0)
    assert {here.hget(key, "hits") for key in many} == {b"1"}
    assert [key for key in here.scan_iter() if not key.startswith(b"h:")] == [b"penstock:spark:q"]


def test_what_cannot_be_added_is_refused_before_anything_is(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str
) -> None:
    writer = adder_of(redis_url, monkeypatch)
    for value in ("x", "1.5", "9223372036854775807", " 1", "007"):
        here.hset("wrong", "hits", value)
        with pytest.raises(
            PenstockError, match=f'batch 0: wrong: field hits: cannot add 1 to "{value}", expected a whole'
        ):
            writer.commit([writer.write(iter([hits("right", "wrong")]))], 0)
        assert not here.exists("right")
        here.delete("penstock:spark:q")
    here.set("string", "")
    with pytest.raises(WrongType, match="string holds a string, expected a hash"):
        writer.commit([writer.write(iter([hits("right", "string")]))], 0)
    with pytest.raises(PenstockError, match="one: field seconds: nan cannot be added"):
        writer.write(iter([hits("one", seconds=float("nan"))]))


def test_a_batch_job_adds_too_and_leaves_nothing_for_long(here: Any, redis_url: str) -> None:
    from penstock.spark.hashes import RedisHash

    schema = schema_of("key string, hits long, seconds double")
    for _ in range(2):
        writer: Any = RedisHash({"url": redis_url, "mode": "add"}).writer(schema, overwrite=False)
        writer.commit([writer.write(iter([hits("one", count=2)]))])
    assert here.hgetall("one") == {b"hits": b"4"}
    assert all(0 < here.ttl(key) <= 86_400 for key in here.scan_iter("penstock:*"))


def test_a_query_adds_each_row_once_over_a_restart(
    spark: "SparkSession", here: Any, redis_url: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.csv").write_text("one,1\ntwo,2\n" * 50)
        frame = spark.readStream.schema("key string, hits long").csv(str(source))
        sink = frame.writeStream.format("redis-hash").options(url=redis_url, mode="add")
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert here.hgetall("two") == {b"hits": b"%d" % (100 * (number + 1))}


def test_wrong_values_types_and_options_are_reported(here: Any, redis_url: str) -> None:
    here.hset("one", "hits", "many")
    here.set("string", "")
    here.hset(b"\xff", "hits", "1")
    with pytest.raises(PenstockError, match="one: field hits: b'many' is no int64"):
        rows_of(redis_url, "key string, hits long", keys="one")
    for columns in (None, "key string, hits string"):
        with pytest.raises(WrongType, match="string holds a string, expected a hash"):
            rows_of(redis_url, columns, keys="string")
    batch = pa.RecordBatch.from_pydict({"key": ["one", "string"], "name": ["", ""]})
    writer = writer_of(redis_url, "key string, name string")
    with pytest.raises(WrongType, match="string holds a string, expected a hash"):
        writer.write(iter([batch]))
    with pytest.raises(PenstockError, match=r"its name: b'.xff' is no string"):
        rows_of(redis_url, "key string, hits long", keys="\\\xff,?")
    reads: list[tuple[dict[str, Any], str]] = [
        ({"ddl": "key string, at timestamp", "keys": "*"}, "column at timestamp: expected string, binary, boolean"),
        ({"ddl": "name string", "keys": "*"}, "no column key string: the option keyColumn names it"),
        ({"ddl": None}, "option keys: missing"),
    ]
    for read, expected in reads:
        with pytest.raises(WrongOption, match=expected):
            rows_of(redis_url, **read)
    writes: list[tuple[str, dict[str, str], str]] = [
        ("key string, name string", {"mode": "add"}, "column name string: only numbers"),
        ("key string, list array<int>", {}, "column list array<int>: expected one value"),
        ("name string", {}, "no column key .string.: the option keyColumn names it"),
        ("key string", {"mode": "ad"}, "option mode: 'ad': expected set | add"),
        ("key string", {"ttl": "-1"}, "option ttl: -1 is out of range"),
    ]
    for ddl, write, expected in writes:
        with pytest.raises(WrongOption, match=expected):
            writer_of(redis_url, ddl, **write)
    with pytest.raises(WrongOption, match="option mode: add goes with"):
        writer_of(redis_url, "key string", overwrite="yes", mode="add")
