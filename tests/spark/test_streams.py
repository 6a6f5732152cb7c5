"""Event streams as a Spark source: each event once, in bounded micro-batches, and no gap without an error."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import DataLost, WrongOption, WrongType
from penstock.base.keys import Keys
from tests.spark import SHOP, DataFrame, SparkSession, add_events


def options(redis_url: str, **more: object) -> dict[str, str]:
    given: dict[str, object] = {"url": redis_url, "keys": SHOP.events, **more}
    return {name: str(value) for name, value in given.items()}


def load(spark: "SparkSession", redis_url: str, **more: object) -> "DataFrame":
    return spark.read.format("redis-stream").options(**options(redis_url, **more)).load()


def read_on(spark: "SparkSession", redis_url: str, place: Path, **more: object) -> list[int]:
    """Start a query and append its rows to those of earlier ones. Return the sizes of its micro-batches."""
    stream = spark.readStream.format("redis-stream").options(**options(redis_url, **more)).load()
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(place / "out"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def ids_in(spark: "SparkSession", place: Path) -> Counter[int]:
    return Counter(int(row.id) for row in spark.read.parquet(str(place / "out")).select("id").collect())


def test_a_batch_has_every_event_once_with_all_that_it_says(spark: "SparkSession", shop: Any, redis_url: str) -> None:
    add_events(shop, 1_000)
    rows = load(spark, redis_url).orderBy("number").collect()
    assert [(row.number, row.id, row.xid, row.seconds) for row in rows] == [
        (id, str(id), f"x{id}", id / 10) for id in range(1, 1_001)
    ]
    assert {(row.namespace, row.event, row.queue, row.service, row.attempt) for row in rows} == {
        ("shop", "done", "out", "1", 1)
    }
    assert {row["at"].timestamp() for row in rows} == {1_700_000_000.123}
    assert len({(row.entry, row.place) for row in rows}) == 1_000


def test_a_long_stream_is_read_in_parts_that_are_the_whole(spark: "SparkSession", shop: Any, redis_url: str) -> None:
    add_events(shop, 120_000, each=5_000)
    found = load(spark, redis_url, partitions=4)
    assert found.rdd.getNumPartitions() == 4
    assert found.selectExpr("count(*)", "count(distinct id)", "min(number)", "max(number)").collect() == [
        (120_000, 120_000, 1, 120_000)
    ]


def test_streams_are_found_by_pattern_and_only_streams(spark: "SparkSession", shop: Any, redis_url: str) -> None:
    for name, many in ("shop:a", 3), ("shop:b", 5), ("other", 7):
        add_events(shop, many, keys=Keys(name))
    shop.set("shop:c:events", "text")
    shop.xadd(b"shop:\xff:events", {"event": "done", "id": "in no namespace"})
    found = load(spark, redis_url, keys="shop:*:events,other:events").groupBy("namespace").count().collect()
    assert {row.namespace: row["count"] for row in found} == {"shop:a": 3, "shop:b": 5, "other": 7}
    assert load(spark, redis_url, keys="none:*:events").count() == 0


def test_a_query_goes_on_where_it_was_and_no_micro_batch_is_much_larger_than_allowed(
    spark: "SparkSession", shop: Any, redis_url: str, tmp_path: Path
) -> None:
    add_events(shop, 9_000, each=250)
    sizes = read_on(spark, redis_url, tmp_path, maxOffsetsPerTrigger=3_000)
    assert sum(sizes) == 9_000
    assert max(sizes) <= 3_000 + 250
    add_events(shop, 500, start=9_001)
    add_events(shop, 30, start=20_000, keys=Keys("new"))
    names = f"{SHOP.events},new:events"
    assert sum(read_on(spark, redis_url, tmp_path, keys=names)) == 530
    assert read_on(spark, redis_url, tmp_path, keys=names) == []
    expected = [*range(1, 9_501), *range(20_000, 20_030)]
    assert ids_in(spark, tmp_path) == Counter(expected)


def reader(redis_url: str, **more: object) -> Any:
    from penstock.spark.sources.streams import StreamReader

    return StreamReader(options(redis_url, **more))


def everything() -> Any:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    return ReadAllAvailable()


def numbers(reader: Any, start: Any, end: Any) -> list[int | None]:
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [number for batch in batches for number in batch.column("number").to_pylist()]


def test_a_planned_batch_is_the_same_again_though_more_has_come(shop: Any, redis_url: str) -> None:
    add_events(shop, 100)
    first = reader(redis_url)
    end = first.latestOffset({}, everything())
    once = numbers(first, {}, end)
    add_events(shop, 100, start=101)
    assert numbers(reader(redis_url), {}, end) == once == list(range(1, 101))
    assert numbers(first, end, first.latestOffset(end, everything())) == list(range(101, 201))
    assert (
        first.latestOffset(end | {"gone:events": {"id": "5-0", "number": 3}}, everything())["gone:events"]["id"]
        == "5-0"
    )


def test_entries_without_numbers_are_bounded_too(shop: Any, redis_url: str) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    for id in range(500):
        shop.xadd(SHOP.events, {"event": "done", "id": id, "at": 1_700_000_000_000})
    source, found = reader(redis_url), []
    place: dict[str, Any] = {}
    while (end := source.latestOffset(place, ReadMaxRows(200))) != place:
        batches = [batch for part in source.partitions(place, end) for batch in source.read(part)]
        found.append([int(id) for batch in batches for id in batch.column("id").to_pylist()])
        place = end
    assert found == [list(range(200)), list(range(200, 400)), list(range(400, 500))]


@pytest.mark.parametrize("where", ["before it was planned", "after it was planned", "in the middle", "all of it"])
def test_events_trimmed_before_they_were_read_are_reported(shop: Any, redis_url: str, where: str) -> None:
    add_events(shop, 40, each=10)
    names = [name for name, _ in shop.xrange(SHOP.events)]
    source = reader(redis_url)
    start = {SHOP.events: {"id": names[0].decode(), "number": 10}}
    end = source.latestOffset(start, everything())
    match where:
        case "before it was planned":
            shop.xtrim(SHOP.events, minid=names[2], approximate=False)
            end = source.latestOffset(start, everything())
        case "after it was planned":
            shop.xtrim(SHOP.events, minid=names[2], approximate=False)
        case "in the middle":
            shop.xdel(SHOP.events, names[2])
        case "all of it":
            shop.delete(SHOP.events)
    lost = {"in the middle": "21 to 30", "all of it": "11 to 40"}.get(where, "11 to 20")
    with pytest.raises(DataLost, match=rf"^shop:events: events {lost} after .* are gone: .*failOnDataLoss=false"):
        numbers(source, start, end)
    tolerant = reader(redis_url, failOnDataLoss="false")
    kept = [number for number in numbers(tolerant, start, end) if number]
    low, high = map(int, lost.split(" to "))
    assert kept == [number for number in range(11, 41) if not low <= number <= high]
    rows = [
        row for part in tolerant.partitions(start, end) for batch in tolerant.read(part) for row in batch.to_pylist()
    ]
    (mark,) = [row for row in rows if row["malformed"]]
    assert f"events {lost} after" in mark["malformed"]


TRIMMED = ["some are left", "somebody else's are left", "the last one is somebody else's, too", "one of ours is odd"]


@pytest.mark.parametrize("left", TRIMMED)
@pytest.mark.parametrize("checkpoint", ["of today", "of before"])
def test_a_trim_past_a_checkpoint_is_reported_even_after_foreign_entries(
    shop: Any, redis_url: str, left: str, checkpoint: str
) -> None:
    add_events(shop, 30, each=10)
    shop.xadd(SHOP.events, {"temperature": 20})
    source = reader(redis_url)
    start = source.latestOffset({}, everything())
    assert start[SHOP.events]["number"] == 30
    assert source.latestOffset(start, everything()) == start
    if checkpoint == "of before":
        start[SHOP.events]["number"] = None
    add_events(shop, 60, start=31, each=10)
    if left == "one of ours is odd":
        shop.xadd(SHOP.events, {"first": 91, "count": 2, "event": "done", "at": "noon"})
        shop.hincrby(SHOP.metric("events"), "count", 2)
    names = [name for name, _ in shop.xrange(SHOP.events)]
    if "somebody" in left:
        names.append(shop.xadd(SHOP.events, {"temperature": 21}))
    kept = -2 if left == "the last one is somebody else's, too" else -1
    shop.xtrim(SHOP.events, minid=names[kept], approximate=False)
    end = source.latestOffset(start, everything())
    assert end[SHOP.events]["number"] == (92 if left == "one of ours is odd" else 90)
    high = {-1: 90, -2: 80}[kept] if "somebody" in left else {"some are left": 80}.get(left, 90)
    lost = "entries" if checkpoint == "of before" else f"events 31 to {high}"
    with pytest.raises(DataLost, match=rf"^shop:events: {lost} after .* are gone"):
        numbers(source, start, end)
    tolerant = reader(redis_url, failOnDataLoss="false")
    rows = [
        row for part in tolerant.partitions(start, end) for batch in tolerant.read(part) for row in batch.to_pylist()
    ]
    assert [lost in row["malformed"] for row in rows if row["place"] == -1] == [True]


def test_a_checkpoint_without_a_number_is_no_loss_if_nothing_was_trimmed_past_it(shop: Any, redis_url: str) -> None:
    add_events(shop, 20, each=10)
    odd = shop.xadd(SHOP.events, {"temperature": 20})
    add_events(shop, 20, start=21, each=10)
    source = reader(redis_url)
    start = {SHOP.events: {"id": odd.decode(), "number": None}}
    end = source.latestOffset(start, everything())
    assert numbers(source, start, end) == [*range(21, 41)]
    shop.xtrim(SHOP.events, minid=odd, approximate=False)
    assert numbers(source, start, end) == [*range(21, 41)]
    shop.xdel(SHOP.events, shop.xrange(SHOP.events, min=f"({odd.decode()}", count=1)[0][0])
    start[SHOP.events]["number"] = 20
    with pytest.raises(DataLost, match=r"events 21 to 30 after"):
        numbers(source, start, end)


def test_a_query_from_the_end_finds_it_even_after_foreign_entries(shop: Any, redis_url: str) -> None:
    add_events(shop, 20, each=10)
    for _ in range(120):
        shop.xadd(SHOP.events, {"temperature": 20})
    source = reader(redis_url, startingOffsets="latest")
    start = source.initialOffset()
    assert start[SHOP.events]["number"] == 20
    add_events(shop, 20, start=21, each=10)
    shop.xtrim(SHOP.events, maxlen=1, approximate=False)
    with pytest.raises(DataLost, match=r"events 21 to 30 after"):
        numbers(source, start, source.latestOffset(start, everything()))


def test_what_is_no_event_among_events_is_no_loss(shop: Any, redis_url: str) -> None:
    add_events(shop, 20, each=10)
    shop.xadd(SHOP.events, {"temperature": 20})
    add_events(shop, 20, start=21, each=10)
    shop.xadd(SHOP.events, {"first": 41, "count": 2, "event": "done", "at": "noon"})
    shop.hincrby(SHOP.metric("events"), "count", 2)
    add_events(shop, 20, start=43, each=10)
    source = reader(redis_url)
    start = {SHOP.events: {"id": shop.xrange(SHOP.events, count=1)[0][0].decode(), "number": 10}}
    found = numbers(source, start, source.latestOffset(start, everything()))
    assert found == [*range(11, 21), None, *range(21, 41), None, *range(43, 63)]


def test_numbers_that_begin_anew_are_no_loss(shop: Any, redis_url: str) -> None:
    add_events(shop, 20, each=10)
    shop.delete(SHOP.metric("events"))
    add_events(shop, 20, each=10)
    source = reader(redis_url)
    assert numbers(source, {}, source.latestOffset({}, everything())) == [*range(1, 21), *range(1, 21)]


def test_a_key_of_another_type_is_named(shop: Any, redis_url: str) -> None:
    shop.set(SHOP.events, "text")
    with pytest.raises(WrongType, match=r"^shop:events holds something else, expected a stream$"):
        reader(redis_url).latestOffset({}, everything())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"keys": ""}, "redis-stream: option keys: missing"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: 0 is out of range: expected 1 to"),
        ({"partitions": "two"}, "partitions: 'two' is no whole number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe': expected true | false"),
        ({"key": "shop:events"}, "option key: not known: expected one of .*keys"),
        ({"url": "http://user:secret@host"}, r"option url: 'http://user:\*\*\*@host': "),
    ],
)
def test_a_wrong_option_is_reported(redis_url: str, more: dict[str, str], said: str) -> None:
    with pytest.raises(WrongOption, match=said) as raised:
        reader(redis_url, **more)
    assert "secret" not in str(raised.value)


def entries_of(shop: Any) -> list[str]:
    return [id.decode() for id, _ in shop.xrange(SHOP.events)]


def add_apart(shop: Any) -> list[str]:
    """Write four entries of two events each, in different milliseconds; return their ids."""
    for start in (1, 3, 5, 7):
        add_events(shop, 2, start=start)
        time.sleep(0.003)
    return entries_of(shop)


def test_a_batch_begins_and_ends_where_offsets_and_timestamps_say(
    spark: "SparkSession", shop: Any, redis_url: str
) -> None:
    ids = add_apart(shop)
    times = [int(id.partition("-")[0]) for id in ids]

    def read(**more: object) -> list[int]:
        return sorted(int(row.id) for row in load(spark, redis_url, **more).select("id").collect())

    assert read(startingOffsets=json.dumps({SHOP.events: ids[1]})) == [3, 4, 5, 6, 7, 8]
    assert read(endingOffsets=json.dumps({SHOP.events: ids[1]})) == [1, 2]
    assert read(startingTimestamp=times[1], endingTimestamp=times[3]) == [3, 4, 5, 6]
    assert read(startingTimestamp=0, startingOffsets="latest") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert read(startingTimestamp=times[3] + 1) == []
    assert read(startingOffsets=json.dumps({SHOP.events: -2}), endingOffsets=json.dumps({SHOP.events: -1})) == [
        *range(1, 9)
    ]


def test_a_query_begins_where_its_options_say_and_goes_on_from_there(
    spark: "SparkSession", shop: Any, redis_url: str, tmp_path: Path
) -> None:
    ids = add_apart(shop)
    offsets = json.dumps({SHOP.events: ids[2]})
    assert read_on(spark, redis_url, tmp_path, startingOffsets=offsets) == [4]
    add_events(shop, 1, start=9)
    assert read_on(spark, redis_url, tmp_path, startingOffsets=offsets) == [1]
    assert ids_in(spark, tmp_path) == Counter({5: 1, 6: 1, 7: 1, 8: 1, 9: 1})
    assert read_on(spark, redis_url, tmp_path / "late", startingTimestamp=int(ids[3].partition("-")[0])) == [3]


def test_a_filter_on_time_finds_events_whose_writer_has_set_it(
    spark: "SparkSession", shop: Any, redis_url: str
) -> None:
    now = int(time.time() * 1000)
    for id, at in (("yesterday", now - 86_400_000), ("now", now), ("ahead", now + 3_600_000)):
        shop.xadd(SHOP.events, {"event": "note", "id": id, "at": at})
    rows = load(spark, redis_url)
    for where, found in (("<", "yesterday"), (">", "ahead")):
        sign = "-" if where == "<" else "+"
        chosen = rows.where(f"at {where} current_timestamp() {sign} interval 30 minutes")
        assert [row.id for row in chosen.collect()] == [found]


def test_the_progress_of_a_query_shows_the_newest_entries(
    spark: "SparkSession", shop: Any, redis_url: str, tmp_path: Path
) -> None:
    ids = add_apart(shop)
    stream = spark.readStream.format("redis-stream").options(**options(redis_url, maxOffsetsPerTrigger=2)).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        progress = query.lastProgress
        assert progress
        latest = json.loads(progress.sources[0].latestOffset)
    finally:
        query.stop()
    assert latest[SHOP.events]["id"] == ids[-1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"startingOffsets": "[1]"}, "startingOffsets: .* expected earliest"),
        ({"startingOffsets": '{"shop:events": "yesterday"}'}, "startingOffsets: .* expected earliest"),
        ({"endingOffsets": "earliest"}, "endingOffsets: expected latest"),
        ({"endingOffsets": '{"shop:events": -2}'}, "endingOffsets: expected latest"),
        ({"startingOffsets": "latest"}, "startingOffsets: a batch that begins at the end"),
        ({"startingOffsets": '{"shop:events": -1}'}, "startingOffsets: a batch that begins at the end"),
        ({"startingTimestamp": "today"}, "startingTimestamp: 'today' is no whole number"),
        ({"endingTimestamp": "-1"}, "endingTimestamp: -1 is out of range: expected 0 to"),
        ({"entries": "raw", "events": "done"}, "entries: raw entries are no events of namespaces"),
        ({"entries": "raw", "namespaces": "shop"}, "entries: raw entries are no events of namespaces"),
        ({"keys": "", "events": "done"}, "option keys: missing"),
    ],
)
def test_a_wrong_bound_is_reported(redis_url: str, more: dict[str, str], said: str) -> None:
    from penstock.spark.sources.streams import BatchReader

    with pytest.raises(WrongOption, match=said):
        BatchReader(options(redis_url, **more))


@pytest.mark.parametrize("more", [{"endingOffsets": "latest"}, {"endingtimestamp": "5"}])
def test_a_query_refuses_an_end(redis_url: str, more: dict[str, str]) -> None:
    """As Spark's Kafka source does: it would go on past it in silence."""
    from penstock.spark.sources.streams import StreamReader

    with pytest.raises(WrongOption, match=r"ending\w+: a query has no end"):
        StreamReader(options(redis_url, **more))


def test_a_former_name_of_an_option_works_and_warns(redis_url: str) -> None:
    from penstock.spark.sources.streams import BatchReader

    with pytest.warns(FutureWarning, match="maxeventspertrigger is called maxOffsetsPerTrigger now"):
        reader = BatchReader(options(redis_url, maxEventsPerTrigger=7))
    assert reader._most == 7
