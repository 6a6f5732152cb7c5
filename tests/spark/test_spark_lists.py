"""Lists as Spark source and sink: reads and writes are complete, and a crash loses and duplicates nothing."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from penstock.base.errors import DataLost, PenstockError, WrongOption, WrongType
from penstock.spark.options import connect
from penstock.testing.server import EmbeddedServer
from tests.spark import SparkSession


@pytest.fixture(autouse=True, scope="module")
def registered(spark: "SparkSession") -> None:
    from penstock.spark.lists import RedisList

    spark.dataSource.register(RedisList)


ANY_BYTES = [bytes([first, second]) * (first % 7) for first in range(256) for second in (0, 10, 255)]


def waiting(client: "Redis", key: str) -> list[bytes]:
    """Return the messages of a list, oldest first."""
    found: Any = client.lrange(key, 0, -1)
    return list(found[::-1])


def reader_of(url: str, **options: str) -> Any:
    from penstock.spark.sources.lists import StreamReader

    return StreamReader({"url": url, "key": "in", **options})


def read_by(reader: Any, start: dict[str, int], end: dict[str, int]) -> list[bytes]:
    return [
        value.as_py()
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for value in batch.column("value")
    ]


def latest(reader: Any, sequence: int) -> Any:
    return reader.latestOffset({"sequence": sequence}, reader.getDefaultReadLimit())


def writer_of(url: str, ddl: str = "value binary", **options: str) -> Any:
    from pyspark.sql.types import StructType

    from penstock.spark.lists import RedisList

    schema: Any = StructType.fromDDL(ddl)
    return RedisList({"url": url, **options}).streamWriter(schema, overwrite=False)


def batch_of(*values: bytes, **columns: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **columns})


def written(monkeypatch: pytest.MonkeyPatch, writer: Any, batch: int, *tasks: pa.RecordBatch, query: str = "q") -> None:
    """Write and commit one batch of ``query``."""
    monkeypatch.setattr("penstock.spark.sinks.writers.query_of_task", lambda: query)
    writer.commit([writer.write(iter([task])) for task in tasks], batch)


# Batch jobs


def test_a_list_is_read_oldest_first_and_stays_as_it_is(spark: "SparkSession", here: Any, redis_url: str) -> None:
    here.lpush("in", *ANY_BYTES)
    rows = spark.read.format("redis-list").options(url=redis_url, key="in", partitions="3").load().collect()
    assert [bytes(row.value) for row in rows] == ANY_BYTES
    assert [row.position for row in rows] == list(range(len(ANY_BYTES)))
    assert waiting(here, "in") == ANY_BYTES


def test_rows_are_appended_in_their_order_and_overwrite_replaces_them(
    spark: "SparkSession", here: Any, redis_url: str
) -> None:
    here.lpush("out", b"older")
    frame = spark.createDataFrame([(each,) for each in ANY_BYTES], "value binary").coalesce(1)
    write = frame.write.format("redis-list").options(url=redis_url, key="out")
    write.mode("append").save()
    assert waiting(here, "out") == [b"older", *ANY_BYTES]
    write.mode("overwrite").save()
    assert waiting(here, "out") == ANY_BYTES
    assert here.ttl("out") == -1
    frame.limit(0).write.format("redis-list").options(url=redis_url, key="out").mode("overwrite").save()
    assert not here.exists("out")
    assert not list(here.scan_iter("out:spark-staged:*"))


def test_each_row_may_name_its_list_and_partitions_follow_each_other(
    spark: "SparkSession", here: Any, redis_url: str
) -> None:
    here.lpush("list:1", "older")
    rows = [(f"list:{number % 3}", str(number)) for number in range(1000)]
    frame = spark.createDataFrame(rows, "key string, value string").coalesce(2)
    frame.write.format("redis-list").options(url=redis_url).mode("append").save()
    for rest in range(3):
        expected = [str(number).encode() for number in range(1000) if number % 3 == rest]
        assert waiting(here, f"list:{rest}") == [b"older"] * (rest == 1) + expected


def test_a_job_that_fails_leaves_nothing(spark: "SparkSession", here: Any, redis_url: str) -> None:
    frame = spark.range(100).coalesce(1).selectExpr("if(id = 99, null, cast(id as string)) value")
    with pytest.raises(Exception, match="column value: a row has null"):
        frame.write.format("redis-list").options(url=redis_url, key="out").mode("append").save()
    assert not here.keys()


def test_invalid_utf8_is_reported_with_its_position(here: Any, redis_url: str) -> None:
    here.lpush("in", "å", b"\xff")
    reader = reader_of(redis_url, text="true")
    with pytest.raises(PenstockError, match=r"in:spark:stream:1: the message at position 1 is no UTF-8"):
        read_by(reader, {"sequence": 0}, latest(reader, 0))


# The source of a query


def test_a_micro_batch_is_fixed_before_it_runs(here: Any, redis_url: str) -> None:
    here.lpush("in", "1", "2", "3")
    reader = reader_of(redis_url, maxOffsetsPerTrigger="2", partitions="2")
    assert reader.initialOffset() == {"sequence": 0}
    assert latest(reader, 0) == latest(reader, 0) == {"sequence": 1}, "asked again, it takes no more"
    here.lpush("in", "4")
    assert read_by(reader, {"sequence": 0}, {"sequence": 1}) == [b"1", b"2"]

    after_a_crash = reader_of(redis_url)
    assert latest(after_a_crash, 0) == {"sequence": 1}
    assert read_by(after_a_crash, {"sequence": 0}, {"sequence": 1}) == [b"1", b"2"]
    assert waiting(here, "in") == [b"3", b"4"]


def test_a_commit_deletes_all_segments_up_to_it_and_an_empty_list_is_no_batch(here: Any, redis_url: str) -> None:
    here.lpush("in", "1", "2")
    reader = reader_of(redis_url, maxOffsetsPerTrigger="1")
    assert latest(reader, latest(reader, 0)["sequence"]) == {"sequence": 2}
    assert latest(reader, 2) == {"sequence": 2}
    for _ in range(2):
        reader.commit({"sequence": 2})
        assert here.keys() == [b"in:spark:stream"]
    assert here.hgetall("in:spark:stream") == {b"taken": b"2", b"done": b"2"}


def test_a_batch_ends_at_its_bytes(here: Any, redis_url: str) -> None:
    here.lpush("in", *["x" * 100] * 10)
    reader = reader_of(redis_url, maxBytesPerTrigger="250")
    assert len(read_by(reader, {"sequence": 0}, latest(reader, 0))) == 3


def test_without_its_checkpoint_a_query_goes_on_with_what_is_left(here: Any, redis_url: str) -> None:
    here.lpush("in", *"12345")
    lost = reader_of(redis_url, maxOffsetsPerTrigger="2")
    latest(lost, 0)
    latest(lost, 1)
    lost.commit({"sequence": 1})

    reader = reader_of(redis_url)
    start = reader.initialOffset()
    assert start == {"sequence": 1}
    assert read_by(reader, start, latest(reader, 1)) == [b"3", b"4"]
    assert read_by(reader, {"sequence": 2}, latest(reader, 2)) == [b"5"]


def test_queries_of_different_names_share_a_list(here: Any, redis_url: str) -> None:
    here.lpush("in", "1", "2")
    one, other = (reader_of(redis_url, name=name, maxOffsetsPerTrigger="1") for name in ("one", "other"))
    assert read_by(one, {"sequence": 0}, latest(one, 0)) == [b"1"]
    assert read_by(other, {"sequence": 0}, latest(other, 0)) == [b"2"]


def test_a_missing_segment_is_reported_unless_the_user_continues(here: Any, redis_url: str) -> None:
    here.lpush("in", "1")
    reader = reader_of(redis_url)
    latest(reader, 0)
    part = reader.partitions({"sequence": 0}, {"sequence": 1})[0]
    here.delete("in:spark:stream:1")
    for ask in (
        lambda: latest(reader, 0),
        lambda: reader.partitions({"sequence": 0}, {"sequence": 1}),
        lambda: list(reader.read(part)),
    ):
        with pytest.raises(DataLost, match=r"in:spark:stream:1 is gone.* name=stream .*failOnDataLoss=false"):
            ask()
    goes_on = reader_of(redis_url, failOnDataLoss="false")
    assert latest(goes_on, 0) == {"sequence": 1}
    assert read_by(goes_on, {"sequence": 0}, {"sequence": 1}) == []


def test_with_available_now_what_comes_later_is_left_for_the_next_run(here: Any, redis_url: str) -> None:
    here.lpush("in", *"123")
    reader = reader_of(redis_url, maxOffsetsPerTrigger="2")
    reader.prepareForTriggerAvailableNow()
    here.lpush("in", *"45")
    assert [latest(reader, start)["sequence"] for start in (0, 1, 2)] == [1, 2, 2]
    assert read_by(reader, {"sequence": 0}, {"sequence": 2}) == [b"1", b"2", b"3"]


def test_a_server_that_restarts_is_asked_again_and_one_that_stays_away_is_reported(tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path, aof=True) as server:
        with connect(server.url) as client:
            client.lpush("in", "1", "2")
        reader = reader_of(server.url, maxOffsetsPerTrigger="1")
        assert latest(reader, 0) == {"sequence": 1}
        server.restart()
        assert latest(reader, 1) == {"sequence": 2}
        server.restart()
        assert read_by(reader, {"sequence": 0}, {"sequence": 2}) == [b"1", b"2"]
        server.stop()
        with pytest.raises(RedisConnectionError, match=f"connecting to 127.0.0.1:{server.port}"):
            latest(reader, 2)
        reader.stop()


def test_wrong_types_and_wrong_options_are_reported(here: Any, redis_url: str) -> None:
    here.set("in", "no list")
    with pytest.raises(WrongType, match="in holds a string, expected a list"):
        latest(reader_of(redis_url), 0)
    with pytest.raises(WrongType, match="in holds a string, expected a list"):
        reader_of(redis_url).prepareForTriggerAvailableNow()
    for options, expected in (
        ({"maxMessagesPerTriger": "1"}, "option maxMessagesPerTriger: not known"),
        ({"name": "a:b"}, "option name: 'a:b': expected a word without a colon"),
        ({"partitions": "0"}, "option partitions: 0 is out of range"),
        ({"key": ""}, "option key: missing"),
    ):
        with pytest.raises(WrongOption, match=expected):
            reader_of(redis_url, **options)
    for ddl, options, expected in (
        ("value bigint", {"key": "out"}, "column value bigint: expected value .binary or string"),
        ("value string, other int", {"key": "out"}, "column other int: expected"),
        ("key string", {}, "no column value"),
        ("value string", {}, "option key: missing: give it, or a column key"),
        ("value string, key string", {"key": "out"}, "option key: given, and there is a column key"),
    ):
        with pytest.raises(WrongOption, match=expected):
            writer_of(redis_url, ddl, **options)


# The sink of a query


def test_a_repeated_batch_changes_nothing_and_another_querys_batch_0_is_written(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str
) -> None:
    writer = writer_of(redis_url, key="out")
    written(monkeypatch, writer, 0, batch_of(b"1", b"2"), batch_of(), batch_of(b"3"))
    written(monkeypatch, writer, 1, batch_of(b"4"))
    written(monkeypatch, writer, 1, batch_of(b"4"))
    written(monkeypatch, writer, 0, batch_of(b"1"), batch_of(b"2", b"3"))
    assert waiting(here, "out") == [b"1", b"2", b"3", b"4"]
    written(monkeypatch, writer, 0, batch_of(b"5"), query="with another checkpoint")
    assert waiting(here, "out") == [b"1", b"2", b"3", b"4", b"5"]
    assert sorted(here.keys()) == [b"out", b"out:spark-written"]


@pytest.mark.parametrize("lengths", [(2, 900, 300), (900, 2, 300), (0, 300, 900), (5, 5, 5)])
def test_the_order_is_the_same_whichever_list_is_the_longest(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str, lengths: tuple[int, ...]
) -> None:
    rows = [[b"%d-%d" % (task, row) for row in range(length)] for task, length in enumerate(lengths)]
    if rows[0]:
        here.lpush("out", *rows[0])
    written(monkeypatch, writer_of(redis_url, key="out"), 0, *(batch_of(*each) for each in rows[1:]))
    assert waiting(here, "out") == [each for some in rows for each in some]
    assert here.ttl("out") == -1


def test_a_commit_sent_twice_is_one_and_aborted_rows_are_gone(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str
) -> None:
    monkeypatch.setattr("penstock.spark.sinks.writers.query_of_task", lambda: "q")
    writer = writer_of(redis_url, key="out")
    staged = [writer.write(iter([batch_of(b"1")]))]
    assert 0 < here.ttl(staged[0].lists[b"out"][0]) <= 86_400
    for _ in range(2):
        writer.commit(staged, 0)
    writer.abort([writer.write(iter([batch_of(b"2")])), None], 1)
    assert waiting(here, "out") == [b"1"]
    assert sorted(here.keys()) == [b"out", b"out:spark-written"]


def test_a_full_server_refuses_before_anything_is_moved(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str
) -> None:
    monkeypatch.setattr("penstock.spark.sinks.writers.query_of_task", lambda: "q")
    here.lpush("in", "1", "2")
    reader, writer = reader_of(redis_url, maxOffsetsPerTrigger="1"), writer_of(redis_url, key="out")
    latest(reader, 0)
    staged = [writer.write(iter([batch_of(b"1")]))]
    here.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(OutOfMemoryError):
            latest(reader, 1)
        with pytest.raises(OutOfMemoryError):
            writer.commit(staged, 0)
        reader.commit({"sequence": 1})  # which frees memory
    finally:
        here.config_set("maxmemory", "0")
    assert waiting(here, "in") == [b"2"]
    writer.commit(staged, 0)
    assert waiting(here, "out") == [b"1"]


def test_missing_staged_rows_are_reported_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str
) -> None:
    monkeypatch.setattr("penstock.spark.sinks.writers.query_of_task", lambda: "q")
    writer = writer_of(redis_url, key="out")
    staged = [writer.write(iter([batch_of(b"1")])), writer.write(iter([batch_of(b"2")]))]
    here.delete(staged[1].lists[b"out"][0])
    with pytest.raises(DataLost, match="batch 0 for out: nothing of it is written: out:spark-staged:"):
        writer.commit(staged, 0)
    assert not here.exists("out", "out:spark-written")


# Running queries


def copy(spark: "SparkSession", url: str, checkpoint: Path) -> None:
    """Move all waiting messages from list to list."""
    source = spark.readStream.format("redis-list").options(url=url, key="in", maxOffsetsPerTrigger="200")
    sink = source.load().writeStream.format("redis-list").options(url=url, key="out")
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def test_from_list_to_list_in_order_over_a_stop_and_a_restart(
    spark: "SparkSession", here: Any, redis_url: str, tmp_path: Path
) -> None:
    here.lpush("in", *ANY_BYTES[:500])
    copy(spark, redis_url, tmp_path)
    assert waiting(here, "out") == ANY_BYTES[:500]
    here.lpush("in", *ANY_BYTES[500:])
    copy(spark, redis_url, tmp_path)
    assert waiting(here, "out") == ANY_BYTES
    segments = list(here.scan_iter("in:spark:stream:*"))
    assert len(segments) <= 1, "Spark commits the last batch when another one follows"
    assert sorted(set(here.keys()) - set(segments)) == [b"in:spark:stream", b"out", b"out:spark-written"]
