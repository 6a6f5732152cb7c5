"""Raw streams: entries are read and written as they are, each exactly once."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from redis.exceptions import OutOfMemoryError

from penstock.base.errors import DataLost, PenstockError, WrongOption, WrongType
from penstock.core.raw_connection import pack
from penstock.spark.options import connect, run
from penstock.spark.sources import pages
from penstock.testing.server import EmbeddedServer
from tests.spark import SparkSession, schema_of

TEXT = "key string, entry string, fields map<string,string>"


@pytest.fixture(autouse=True, scope="module")
def started(spark: "SparkSession") -> None:
    """Start Spark, which is needed to parse a DDL."""


_readers: Final = list[Any]()


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Let readers close their connections: in a cycle of garbage the sockets may go first, and warn."""
    yield
    while _readers:
        _readers.pop().stop()


def reader_of(url: str, ddl: str = TEXT, **options: str) -> Any:
    from penstock.spark.streams import RedisStream

    _readers.append(RedisStream({"url": url, "keys": "s", "entries": "raw", **options}).streamReader(schema_of(ddl)))
    return _readers[-1]


def planned(reader: Any, start: Any, most: int = 2**40) -> Any:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    return reader.latestOffset(start, ReadMaxRows(most))


def read_by(reader: Any, start: Any, end: Any) -> list[dict[str, str]]:
    """Return the fields of each entry."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [dict(row["fields"]) for batch in batches for row in batch.to_pylist()]


def rows_of(reader: Any, spans: list[tuple[Any, Any]]) -> list[dict[str, str]]:
    return [row for span in spans for row in read_by(reader, *span)]


def numbered(*numbers: int) -> list[dict[str, str]]:
    return [{"n": str(number)} for number in numbers]


def add(client: Any, first: int, last: int, key: str = "s") -> None:
    for number in range(first, last + 1):
        client.xadd(key, {"n": number})


def writer_of(url: str, ddl: str = "n long", overwrite: bool = False, **options: str) -> Any:
    from penstock.spark.streams import RedisStream

    given = {"url": url, **({} if "key " in ddl else {"key": "s"}), **options}
    return RedisStream(given).streamWriter(schema_of(ddl), overwrite)


@pytest.fixture
def as_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.sinks.writers.query_of_task", lambda: "q")


def batch_of(*numbers: int, **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), **columns})


def entries(client: Any, key: str = "s") -> list[dict[bytes, bytes]]:
    return [
        dict(zip(words[::2], words[1::2], strict=True)) for _, words in client.execute_command("XRANGE", key, "-", "+")
    ]


def numbers_in(client: Any, key: str = "s") -> list[int]:
    return [int(fields[b"n"]) for fields in entries(client, key)]


# Sink and source together


def test_what_a_job_writes_is_read_again(spark: "SparkSession", here: Any, redis_url: str) -> None:
    rows = [
        ("s:1", "å", 1, True, bytearray(b"\xff\0\n"), {"more": "2", "none": None}),
        ("s:2", None, -1, None, None, None),
    ]
    frame = spark.createDataFrame(
        rows, "key string, name string, hits int, open boolean, raw binary, f map<string,string>"
    )
    frame.write.format("redis-stream").options(url=redis_url).mode("append").save()
    assert entries(here, "s:2") == [{b"hits": b"-1"}]

    read = spark.read.format("redis-stream").options(url=redis_url, keys="s:*", entries="raw")
    assert [(row.key, row.entry, row.fields) for row in read.load().orderBy("key").collect()] == [
        (
            "s:1",
            here.xrange("s:1")[0][0].decode(),
            {"name": "å", "hits": "1", "open": "true", "raw": "\\xff\0\n", "more": "2"},
        ),
        ("s:2", here.xrange("s:2")[0][0].decode(), {"hits": "-1"}),
    ]
    first = read.load().where("key = 's:1'").first()
    assert first
    assert first.timestamp.timestamp() == pytest.approx(int(first.entry.partition("-")[0]) / 1000)
    exact = read.schema(TEXT.replace("string>", "binary>")).load().where("key = 's:1'").first()
    assert exact
    assert bytes(exact.fields["raw"]) == b"\xff\0\n"
    assert all(0 < here.ttl(key) <= 86_400 for key in here.scan_iter("*:spark-*"))


def test_a_query_copies_a_stream_in_order_over_a_restart(
    spark: "SparkSession", here: Any, redis_url: str, tmp_path: Path
) -> None:
    for first in (1, 1001):
        add(here, first, first + 999)
        source = spark.readStream.format("redis-stream").options(url=redis_url, keys="s", entries="raw")
        sink = (
            source.load().selectExpr("'copy' key", "fields").writeStream.format("redis-stream").options(url=redis_url)
        )
        query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert numbers_in(here, "copy") == list(range(1, first + 1000))
    assert len(list(here.scan_iter("copy:spark-written:*"))) == 1
    assert not list(here.scan_iter("*:spark-staged:*"))


# The source


def test_a_micro_batch_is_bounded_and_the_same_again(here: Any, redis_url: str) -> None:
    add(here, 1, 10)
    reader = reader_of(redis_url)
    places: list[dict[str, Any]] = [{}]
    while (end := planned(reader, places[-1], 4)) != places[-1]:
        places.append(end)
    assert [place["s"]["number"] for place in places[1:]] == [4, 8, 10]
    add(here, 11, 12)
    read = [read_by(reader_of(redis_url), *pair) for pair in pairwise(places)]
    assert read == [numbered(1, 2, 3, 4), numbered(5, 6, 7, 8), numbered(9, 10)]
    assert planned(reader_of(redis_url, keys="s,none"), places[-1])["s"]["number"] == 12


def test_pages_are_bounded_by_all_that_entries_hold(here: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a micro-batch is planned: 20,000 entries whose last field was short were read at once."""
    asked = list[int]()

    def recorded(commands: Sequence[Any]) -> bytes:
        asked.append(commands[0][-1])
        return pack(commands)

    monkeypatch.setattr(pages, "PAGE_BYTES", 100_000)
    monkeypatch.setattr(pages, "pack", recorded)
    for number in range(150):
        here.xadd("s", {"n": number, "large": bytes(10_000), "last": 1})
    for _ in range(150):
        here.xadd("s", {"n": 1})
    reader = reader_of(redis_url)
    start = reader.initialOffset()
    end = planned(reader, start, 200)
    assert sum(asked) == 200
    assert asked[:2] == [pages.FIRST_ENTRIES, 9]
    assert all(after <= pages.GROWTH * before for before, after in pairwise(asked))
    asked.clear()
    assert len(read_by(reader, start, end)) == 200
    assert asked[:2] == [pages.FIRST_ENTRIES, 9]
    assert all(after <= pages.GROWTH * before for before, after in pairwise(asked))


def test_from_the_end_only_what_comes_later_is_read(here: Any, redis_url: str) -> None:
    add(here, 1, 3)
    reader = reader_of(redis_url, startingOffsets="latest")
    start = reader.initialOffset()
    add(here, 4, 5)
    assert read_by(reader, start, planned(reader, start)) == numbered(4, 5)


@pytest.mark.parametrize("where", ["before it was planned", "after it was planned", "in the middle", "all of it"])
@pytest.mark.parametrize("most", [100, 3])
def test_entries_deleted_before_they_were_read_are_reported(here: Any, redis_url: str, where: str, most: int) -> None:
    add(here, 1, 4)
    here.xdel("s", here.xrange("s")[1][0])  # before the first read: no loss
    reader = reader_of(redis_url)
    start = planned(reader, {})
    add(here, 5, 12)
    ids = [name for name, _ in here.xrange("s")]
    ends = [planned(reader, start, most)]
    if where == "in the middle":
        here.xdel("s", ids[4], ids[5])
    elif where == "all of it":
        here.xtrim("s", maxlen=0)
        add(here, 13, 13)
    else:
        here.xtrim("s", minid=ids[5], approximate=False)
    if where != "after it was planned":
        ends = [planned(reader, start, most)]
    while (end := planned(reader, ends[-1], most)) != ends[-1]:
        ends.append(end)
    spans = list(pairwise([start, *ends]))

    lost = 8 if where == "all of it" else 2
    with pytest.raises(
        DataLost, match=rf"^s: {lost} entries between .* were trimmed or deleted .*failOnDataLoss=false"
    ):
        rows_of(reader, spans)
    goes_on = reader_of(redis_url, failOnDataLoss="false")
    kept = rows_of(goes_on, spans)
    assert kept == [{"n": fields[b"n"].decode()} for fields in entries(here)[-len(kept) :]]
    assert len(kept) == (1 if where == "all of it" else 6)


def test_a_stream_that_begins_anew_is_no_loss(here: Any, redis_url: str) -> None:
    add(here, 1, 10)
    reader = reader_of(redis_url)
    start = planned(reader, {})
    here.delete("s")
    assert planned(reader, start) == start
    add(here, 1, 8)
    for most in (100, 3):
        end = planned(reader, start, most)
        assert read_by(reader, start, end) == numbered(*range(1, min(most, 8) + 1))


def fill(client: Any, ids: Iterable[str], key: str = "s") -> None:
    with client.pipeline(transaction=False) as wire:
        for number, name in enumerate(ids, 1):
            wire.xadd(key, {"n": number}, id=name)
        wire.execute()


def steady(many: int) -> list[str]:
    return [f"{1_700_000_000_000 + number // 7}-{number % 7}" for number in range(many)]


def late(many: int) -> list[str]:
    """Return ids of which the second half is within a second, after days."""
    first = [f"{1_700_000_000_000 + number * 300_000}-0" for number in range(many // 2)]
    return first + [f"{1_800_000_000_000 + number // 3}-{number % 3}" for number in range(many - many // 2)]


@pytest.mark.parametrize(
    "ids", [steady(4000), late(4000), [f"1-{number}" for number in range(1, 4001)]], ids=["steady", "late", "no times"]
)
def test_a_long_stream_is_read_in_parts_and_each_entry_once(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str, ids: list[str]
) -> None:
    monkeypatch.setattr("penstock.spark.sources.raw.SPLIT", 1000)
    fill(here, ids)
    reader = reader_of(redis_url, minPartitions="4")
    starts: list[Any] = [{}, planned(reader, {}, 2500)]
    for start in starts:
        parts = reader.partitions(start, planned(reader, start))
        read = [[int(row["fields"][0][1]) for row in rows] for rows in (rows_of_part(reader, part) for part in parts)]
        first = 1 if not start else start["s"]["number"] + 1
        assert [number for part in read for number in part] == list(range(first, 4001))
        assert len(parts) == 4
        assert all((4001 - first) / 10 < len(part) < (4001 - first) / 2 for part in read)


def rows_of_part(reader: Any, part: Any) -> list[dict[str, Any]]:
    return [row for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_short_stream_is_read_at_once(here: Any, redis_url: str) -> None:
    fill(here, steady(4000))
    reader = reader_of(redis_url, minPartitions="4")
    assert len(reader.partitions({}, planned(reader, {}))) == 1


@pytest.mark.parametrize("what", ["trimmed", "deleted", "all deleted", "read before it was trimmed", "nothing"])
def test_parts_report_what_is_gone_before_they_read_it(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str, what: str
) -> None:
    monkeypatch.setattr("penstock.spark.sources.raw.SPLIT", 1000)
    ids = steady(4000)
    fill(here, ids)
    reader = reader_of(redis_url, minPartitions="4")
    start = planned(reader, {}, 500)
    end = planned(reader, start)
    here.xtrim("s", maxlen=3600, approximate=False)  # nothing that is still to be read
    parts = reader.partitions(start, end)
    assert len(parts) == 4
    lost = {"trimmed": slice(0, 600), "deleted": slice(3000, 3001), "all deleted": slice(0, 4000)}.get(what)
    if lost:
        here.xdel("s", *ids[lost]) if "deleted" in what else here.xtrim("s", maxlen=3400, approximate=False)
    if what == "read before it was trimmed":
        assert read_by(reader, start, planned(reader, start, 1))
        read = [rows_of_part(reader, part) for part in parts[:1]]
        here.xtrim("s", maxlen=3400, approximate=False)
        read += [rows_of_part(reader, part) for part in parts[1:]]
        assert sum(map(len, read)) == 3500
    elif lost:
        with pytest.raises(DataLost, match=r"^s: entries between .* were trimmed or deleted .*failOnDataLoss=false"):
            [rows_of_part(reader, part) for part in parts]
        goes_on = reader_of(redis_url, failOnDataLoss="false")
        assert sum(len(rows_of_part(goes_on, part)) for part in parts) == {"trimmed": 3400, "deleted": 3499}.get(
            what, 0
        )
        assert len(reader.partitions(start, end)) == 1  # then the lost entries are counted
    else:
        assert sum(len(rows_of_part(reader, part)) for part in parts) == 3500


@pytest.mark.parametrize(
    ("keys", "named"), [("orders", "orders"), ("shop:events,orders,more", "more, orders"), ("o*,m*", "more, orders")]
)
def test_streams_of_others_are_recognised(here: Any, redis_url: str, keys: str, named: str) -> None:
    for key in ("orders", "more"):
        here.xadd(key, {"n": 1})
    here.xadd("shop:events", {"event": "done", "id": "1"})
    here.xadd("copied", {"event": "done", "id": "1"})
    here.xadd("copied", {"n": 1})
    expected = rf"^redis-stream: {named}: its entries are no events: read them with the option entries=raw$"
    with pytest.raises(WrongOption, match=expected):
        reader_of(redis_url, entries="events", keys=keys).initialOffset()
    assert reader_of(redis_url, keys=keys).initialOffset() == {}
    assert reader_of(redis_url, entries="events", keys="*,copied").initialOffset() == {}


def test_a_field_that_is_there_twice_has_its_last_value(here: Any, redis_url: str) -> None:
    here.execute_command("XADD", "s", "*", "n", "1", "n", "2", "m", "3")
    reader = reader_of(redis_url)
    assert read_by(reader, {}, planned(reader, {})) == [{"n": "2", "m": "3"}]


def words_of(entry: str) -> list[str]:
    return [letter for pair in entry.split() for letter in pair]


@pytest.mark.parametrize("others", [[], ["m1 n2"], ["n1"], ["n1 m2 o3"], ["n1 k2"], ["n1", "m2 n3 m4"]], ids=", ".join)
def test_fields_and_times_are_those_of_each_entry_whatever_its_neighbours_have(
    here: Any, redis_url: str, others: list[str]
) -> None:
    from penstock.spark.sources.raw import RAW_COLUMNS

    sent = [["n", "\xff", "m", ""], ["n", "5", "m", "66"], *map(words_of, others), ["n", "7", "m", "8"]]
    for number, words in enumerate(sent):
        here.execute_command("XADD", "s", f"{number or ''}1700000000000-{number}", *words)
    reader = reader_of(redis_url, RAW_COLUMNS)
    (part,) = reader.partitions({}, planned(reader, {}))
    rows = rows_of_part(reader, part)
    assert [dict(row["fields"]) for row in rows] == [dict(zip(words[::2], words[1::2], strict=True)) for words in sent]
    assert [f"{row['timestamp'].timestamp() * 1000:.0f}-{number}" for number, row in enumerate(rows)] == [
        row["entry"] for row in rows
    ]


def test_wrong_types_and_wrong_options_are_reported(here: Any, redis_url: str, as_query: None) -> None:
    here.set("s", "no stream")
    with pytest.raises(WrongType, match=r"^s holds something else, expected a stream$"):
        planned(reader_of(redis_url), {})
    writer = writer_of(redis_url)
    with pytest.raises(WrongType, match=r"^s holds a string, expected a stream$"):
        writer.commit([writer.write(iter([batch_of(1)]))], 0)
    with pytest.raises(
        WrongOption, match=r"schema: entry string: expected key string, entry string, timestamp timestamp, fields map"
    ):
        reader_of(redis_url, "entry string")
    with pytest.raises(WrongOption, match=r"entries: 'all': expected events | raw"):
        reader_of(redis_url, entries="all")
    for ddl, options, overwrite, expected in (
        ("n long", {}, True, "mode overwrite .*expected append"),
        ("n long", {"maxLength": "-1"}, False, "option maxLength: -1 is out of range"),
        ("n array<int>", {}, False, "column n array<int>: expected one value, or map<string,string>"),
        ("n long", {"key": ""}, False, "option key: missing: give it, or a column key"),
        ("key string, n long", {"key": "s"}, False, "option key: given, and there is a column key"),
        ("key long, n long", {}, False, "option key: the column key is bigint: expected string"),
        ("key string", {}, False, "no column but key"),
    ):
        with pytest.raises(WrongOption, match=expected):
            writer_of(redis_url, ddl, overwrite, **options)


# The sink


def test_a_repeated_batch_changes_nothing_however_it_is_divided(here: Any, redis_url: str, as_query: None) -> None:
    add(here, 0, 0)
    writer = writer_of(redis_url)
    many = list(range(1, 2501))
    divided = [[batch_of(*many[:1500]), batch_of(), batch_of(*many[1500:])], [batch_of(*many[:7]), batch_of(*many[7:])]]
    for tasks in (*divided, divided[0]):
        writer.commit([writer.write(iter([task])) for task in tasks], 0)
        assert numbers_in(here) == [0, *many]
    writer.commit([writer.write(iter([batch_of(9)]))], 1)
    writer.commit([writer.write(iter([batch_of(1)]))], 0)
    assert numbers_in(here) == [0, *many, 9]
    assert sorted(here.keys()) == [b"s", b"s:spark-written:q"]


def test_each_row_may_name_its_stream_any_name(here: Any, redis_url: str, as_query: None) -> None:
    names = ["a b", "c\nd", "å", "a b"]
    writer = writer_of(redis_url, "key string, n long")
    for _ in range(2):
        writer.commit([writer.write(iter([batch_of(1, 2, 3, 4, key=names)])), writer.write(iter([]))], 0)
    assert [numbers_in(here, name) for name in names[:3]] == [[1, 4], [2], [3]]


def test_an_interrupted_commit_is_finished_with_its_own_rows(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str, as_query: None
) -> None:
    writer = writer_of(redis_url)
    many = list(range(2500))
    staged = [writer.write(iter([batch_of(*many)]))]
    calls: list[Any] = []

    def breaks_off(redis: Any, script: Any, /, **named: Any) -> Any:
        calls.append(script.name)
        found = run(redis, script, **named)
        if len(calls) == 3:
            raise ConnectionError("killed")
        return found

    with monkeypatch.context() as patched:
        for module in ("once", "streams"):
            patched.setattr(f"penstock.spark.sinks.{module}.run", breaks_off)
        with pytest.raises(ConnectionError):
            writer.commit(staged, 0)
    assert calls == ["decide.lua", "append.lua", "append.lua"]
    assert numbers_in(here) == many[:2000]

    writer.commit([writer.write(iter([batch_of(*many[half::2])])) for half in range(2)], 0)
    assert numbers_in(here) == many
    assert sorted(here.keys()) == [b"s", b"s:spark-written:q"]


def test_scripts_whose_replies_are_lost_are_run_again_and_append_once(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str, as_query: None
) -> None:
    def run_twice(redis: Any, script: Any, /, **named: Any) -> Any:
        run(redis, script, **named)
        return run(redis, script, **named)

    for module in ("once", "streams"):
        monkeypatch.setattr(f"penstock.spark.sinks.{module}.run", run_twice)
    writer = writer_of(redis_url)
    writer.commit([writer.write(iter([batch_of(*range(2400))])), writer.write(iter([batch_of(2400)]))], 0)
    assert numbers_in(here) == list(range(2401))


def test_a_long_stream_is_trimmed_and_large_rows_go_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, here: Any, redis_url: str, as_query: None
) -> None:
    monkeypatch.setattr("penstock.spark.sinks.streams.PAGE_BYTES", 1_000)
    writer = writer_of(redis_url, "n long, text string", maxLength="100")
    writer.commit([writer.write(iter([batch_of(*range(1000), text=["x" * 500] * 1000)]))], 0)
    found = numbers_in(here)
    assert found == list(range(1000))[-len(found) :]
    assert 100 <= len(found) <= 300


def test_a_full_server_refuses_before_anything_is_moved(here: Any, redis_url: str, as_query: None) -> None:
    writer = writer_of(redis_url)
    staged = [writer.write(iter([batch_of(1, 2)]))]
    here.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(OutOfMemoryError):
            writer.commit(staged, 0)
    finally:
        here.config_set("maxmemory", "0")
    writer.commit(staged, 0)
    assert numbers_in(here) == [1, 2]


def test_a_row_that_no_entry_can_hold_is_reported_and_leaves_nothing(here: Any, redis_url: str, as_query: None) -> None:
    writer = writer_of(redis_url)
    empty = pa.RecordBatch.from_pydict({"n": pa.array([1, None], pa.int64())})
    with pytest.raises(PenstockError, match="all fields of a row are null: an entry has one at least"):
        writer.write(iter([batch_of(1), empty]))
    wide = pa.RecordBatch.from_pydict({f"n{place}": ["1"] for place in range(3001)})
    with pytest.raises(PenstockError, match="a row has 3001 fields: an entry takes 3000 at most"):
        writer.write(iter([wide]))
    widest = pa.RecordBatch.from_pydict({f"n{place}": ["1"] for place in range(3000)})
    writer.commit([writer.write(iter([widest]))], 0)
    assert len(entries(here)[0]) == 3000
    with pytest.raises(PenstockError, match="column key: a row has null"):
        writer_of(redis_url, "key string, n long").write(iter([batch_of(1, key=[None])]))
    assert sorted(here.keys()) == [b"s", b"s:spark-written:q"]


def test_missing_staged_rows_are_reported_and_nothing_is_written(here: Any, redis_url: str, as_query: None) -> None:
    writer = writer_of(redis_url)
    staged = [writer.write(iter([batch_of(1)]))]
    here.flushall()
    with pytest.raises(DataLost, match="batch 0: nothing of it is written: s:spark-staged:"):
        writer.commit(staged, 0)
    assert not here.keys()


def test_a_server_that_restarts_during_a_commit_has_each_row_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_query: None
) -> None:
    with EmbeddedServer(directory=tmp_path, aof=True) as server:
        calls: list[Any] = []

        def restarts(redis: Any, script: Any, /, **named: Any) -> Any:
            calls.append(script.name)
            if len(calls) == 3:
                server.kill()
                server.start()
            return run(redis, script, **named)

        for module in ("once", "streams"):
            monkeypatch.setattr(f"penstock.spark.sinks.{module}.run", restarts)
        writer = writer_of(server.url)
        writer.commit([writer.write(iter([batch_of(*range(2500))]))], 0)
        with connect(server.url) as client:
            assert numbers_in(client) == list(range(2500))
