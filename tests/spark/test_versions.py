"""Hashes as a stream: each number of the version field comes once, also if Spark repeats a micro-batch."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.base.errors import PenstockError, WrongOption, WrongType
from tests.spark import SparkSession, schema_of

DDL = "key string, v long, name string"


@pytest.fixture(autouse=True, scope="module")
def started(spark: "SparkSession") -> None:
    """Start Spark, which is needed to parse a DDL."""


def reader_of(url: str, ddl: str = DDL, **options: str) -> Any:
    from penstock.spark.hashes import RedisHash

    source = RedisHash({"url": url, "keys": "u:*", "versionField": "v", **options})
    return source.streamReader(schema_of(ddl) if ddl else source.schema())


def rows_of(reader: Any, start: int, end: int) -> list[tuple[Any, ...]]:
    parts = reader.partitions({"version": start}, {"version": end})
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return [tuple(row.values()) for row in rows]


def latest(reader: Any, start: int, most: int = 0) -> int:
    limit = ReadMaxRows(most) if most else ReadAllAvailable()
    found: int = reader.latestOffset({"version": start}, limit)["version"]
    return found


def give(here: Any, **versions: int) -> None:
    for name, version in versions.items():
        here.hset(f"u:{name}", mapping={"v": version, "name": f"{name}{version}"})


def test_a_repeated_batch_has_no_hash_that_changed_meanwhile_which_comes_later(here: Any, redis_url: str) -> None:
    give(here, a=1, b=2, c=3)
    here.hset("u:none", "name", "x")
    reader = reader_of(redis_url, partitions="2", keyPrefix="u:", keys="*")
    assert reader.initialOffset() == {"version": 0}
    assert latest(reader, 0) == 3
    assert rows_of(reader, 0, 3) == [("a", 1, "a1"), ("b", 2, "b2"), ("c", 3, "c3")]
    give(here, b=4)
    for each in (reader, reader_of(redis_url, keyPrefix="u:", keys="*")):
        assert rows_of(each, 0, 3) == [("a", 1, "a1"), ("c", 3, "c3")]
    assert latest(reader, 3) == 4
    assert reader.reportLatestOffset() == {"version": 4}
    assert rows_of(reader, 3, 4) == [("b", 4, "b4")]
    assert latest(reader, 4) == 4
    here.unlink("u:a")
    assert rows_of(reader, 0, 1) == []


def test_a_batch_ends_at_its_limit_and_hashes_with_one_number_stay_together(here: Any, redis_url: str) -> None:
    give(here, a=5, b=7, c=7, d=9)
    reader = reader_of(redis_url, ddl="")
    assert latest(reader, 0, most=2) == 7
    assert [key for key, _ in rows_of(reader, 0, 7)] == ["u:a", "u:b", "u:c"]
    assert rows_of(reader, 7, 9) == [("u:d", [("v", "9"), ("name", "d9")])]
    reader.prepareForTriggerAvailableNow()
    give(here, e=10)
    assert latest(reader, 7) == 9
    assert reader_of(redis_url, startingOffsets="latest").initialOffset() == {"version": 10}


def test_a_hash_that_a_search_missed_is_not_skipped(here: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCAN may return a hash that is created meanwhile, and not one that is created a little before."""
    give(here, a=1, c=3)
    reader = reader_of(redis_url)
    search = reader._search

    def create_others_after_it() -> dict[bytes, int]:
        found: dict[bytes, int] = search()
        monkeypatch.setattr(reader, "_search", search)
        give(here, b=2, d=4)
        return found

    monkeypatch.setattr(reader, "_search", create_others_after_it)
    assert latest(reader, 0) == 3
    assert [key for key, *_ in rows_of(reader, 0, 3)] == ["u:a", "u:b", "u:c"]
    assert latest(reader, 3) == 4


def test_the_version_needs_no_column(here: Any, redis_url: str) -> None:
    give(here, a=1)
    reader = reader_of(redis_url, "name string, key string")
    assert rows_of(reader, 0, 1) == [("a1", "u:a")]
    assert rows_of(reader, 1, 2) == []


def test_wrong_versions_types_and_options_are_reported(here: Any, redis_url: str) -> None:
    for word in ("x", "-1", "1.5", "0", str(2**63), "²"):
        here.hset("u:a", "v", word)
        with pytest.raises(PenstockError, match=r"redis-hash: u:a: field v: .*: expected a whole number, 1 to"):
            latest(reader_of(redis_url), 0)
    here.set("u:text", "x")
    with pytest.raises(WrongType, match="u:text holds a string, expected a hash"):
        latest(reader_of(redis_url, keys="u:text"), 0)
    with pytest.raises(WrongOption, match="option versionField: missing"):
        reader_of(redis_url, versionField="")


def test_a_query_goes_on_after_its_last_number(
    spark: "SparkSession", here: Any, redis_url: str, tmp_path: Path
) -> None:
    options = {"url": redis_url, "keys": "*", "keyPrefix": "u:", "versionField": "v", "maxOffsetsPerTrigger": "2"}
    for changes in ({"a": 1, "b": 2, "c": 3}, {"b": 4, "d": 5}):
        give(here, **changes)
        frame = spark.readStream.format("redis-hash").options(**options).schema(DDL).load().selectExpr("name value")
        sink = frame.writeStream.format("redis-list").options(
            url=redis_url, key="out", checkpointLocation=str(tmp_path / "checkpoint")
        )
        assert sink.trigger(availableNow=True).start().awaitTermination(120)
    assert here.lrange("out", 0, -1)[::-1] == [b"a1", b"b2", b"c3", b"b4", b"d5"]
