"""JSON documents as tables, as documents of the server and as strings: what is written is read again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis.exceptions import ResponseError

from penstock.base.errors import PenstockError, WrongOption, WrongType
from penstock.spark.options import connect
from tests.spark import SparkSession, schema_of
from tests.spark.json_server import json_server
from tests.support.redis_cluster import two_nodes

DDL = (
    "key string, name string, age int, score double, open boolean, tags array<string>, home struct<city:string,no:int>"
)
ROWS: Any = [
    ("one", "å", 7, 0.5, True, ["a", "b"], ("Bergen", 5)),
    ("two", "", -1, 1e300, False, [], (None, 2)),
    ("three", None, None, None, None, None, None),
]


@pytest.fixture(autouse=True, scope="module")
def started(spark: "SparkSession") -> None:
    """Start Spark, which is needed to parse a DDL."""


@pytest.fixture(scope="module")
def json_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with json_server(tmp_path_factory.mktemp("json")) as url:
        yield url


@pytest.fixture(params=["json", "string"])
def place(request: pytest.FixtureRequest, json_url: str, redis_url: str) -> dict[str, str]:
    """Return the options of an empty server, by the way that it keeps documents."""
    url = json_url if request.param == "json" else redis_url
    with connect(url) as client:
        client.flushall()
    return {"url": url, "storage": request.param}


def rows_of(place: dict[str, str], ddl: str = "", **options: str) -> list[dict[str, Any]]:
    from penstock.spark.documents import RedisJson

    source = RedisJson({**place, **options})
    reader = source.reader(schema_of(ddl) if ddl else source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def write(place: dict[str, str], ddl: str, rows: list[tuple[Any, ...]], **options: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.spark.documents import RedisJson

    schema = schema_of(ddl)
    arrow = to_arrow_schema(schema, timezone="UTC")
    batch = pa.RecordBatch.from_pylist([dict(zip(arrow.names, row, strict=True)) for row in rows], arrow)
    writer = RedisJson({**place, **options}).streamWriter(schema, False)
    writer.commit([writer.write(iter([batch]))], 0)


def test_what_is_written_twice_is_read_once(spark: "SparkSession", place: dict[str, str]) -> None:
    with connect(place["url"]) as client:
        client.hset("mine:hash", "n", 1)
    for _ in range(2):
        frame = spark.createDataFrame(ROWS, DDL)
        frame.write.format("redis-json").options(**place, keyPrefix="mine:*").mode("append").save()
    read = spark.read.format("redis-json").options(**place, keys="*,none", keyPrefix="mine:*", partitions="2")
    whole = {row["key"]: json.loads(row["document"]) for row in read.load().collect()}
    assert whole == {
        "one": {
            "name": "å",
            "age": 7,
            "score": 0.5,
            "open": True,
            "tags": ["a", "b"],
            "home": {"city": "Bergen", "no": 5},
        },
        "two": {"name": "", "age": -1, "score": 1e300, "open": False, "tags": [], "home": {"city": None, "no": 2}},
        "three": {},
    }
    assert sorted(map(tuple, read.schema(DDL).load().collect())) == sorted(ROWS)


def test_a_query_writes_whole_documents(spark: "SparkSession", place: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text('{"a": 1}\n[2]\n"three"\n')
    frame = spark.readStream.text(str(tmp_path / "in")).selectExpr("concat('d', length(value)) id", "value document")
    sink = frame.writeStream.format("redis-json").options(
        **place, keyColumn="id", checkpointLocation=str(tmp_path / "checkpoint")
    )
    assert sink.trigger(availableNow=True).start().awaitTermination(120)
    found = {row["key"]: json.loads(row["document"]) for row in rows_of(place, keys="d*")}
    assert found == {"d8": {"a": 1}, "d3": [2], "d7": "three"}


def test_a_time_to_live_is_set_with_the_document(place: dict[str, str]) -> None:
    write(place, "key string, n int", [("x", 1), ("y", 2)], ttl="600")
    with connect(place["url"]) as client:
        assert all(0 < client.ttl(key) <= 600 for key in ("x", "y"))


def test_documents_of_a_cluster() -> None:
    rows = [(f"k{number:03}", number) for number in range(200)]
    with two_nodes() as nodes:
        place = {"url": f"redis+cluster://127.0.0.1:{nodes[0].server.port}", "storage": "string"}
        write(place, "key string, n long", rows)
        assert [(row["key"], row["n"]) for row in rows_of(place, "key string, n long", keys="k*")] == rows
        assert all(node.client.dbsize() > 10 for node in nodes)


def test_values_of_other_types_are_reported_with_their_key(place: dict[str, str]) -> None:
    documents = {
        "text": '{"n": "1"}',
        "half": '{"n": 1.5}',
        "large": '{"n": 3000000000}',
        "truth": '{"n": true}',
        "list": "[1]",
    }
    write(place, "key string, document string", [*documents.items()])
    for key, problem in (
        ("text", 'text: member n: "1" is no int'),
        ("half", r"half: member n: 1\.5 is no int"),
        ("large", "large: member n: .*3000000000"),
        ("truth", "truth: member n: true is no int"),
        ("list", r"list holds no object: \[1\]. Read it without a schema"),
    ):
        with pytest.raises(PenstockError, match=f"redis-json: {problem}"):
            rows_of(place, "key string, n int", keys=key)
    (row,) = rows_of(place, "key string, n double", keys="half")
    assert row == {"key": "half", "n": 1.5}


def test_wrong_rows_and_columns_are_reported(place: dict[str, str]) -> None:
    whole = "key string, document string"
    for ddl, row, problem in (
        (whole, (None, "{}"), "column key: a row has null"),
        (whole, ("x", None), "x: column document: null is no document"),
        (whole, ("x", "{"), "x: its document is no JSON"),
        (whole, ("x", "[NaN]"), "x: its document is no JSON: NaN is no number"),
        ("key string, n double", ("x", float("nan")), "x: Out of range"),
    ):
        with pytest.raises(PenstockError, match=f"redis-json: {problem}"):
            write(place, ddl, [row])
    for ddl, problem in (
        ("key string", "no column key string"),
        ("id string, n int", "no column key string"),
        ("key string, at timestamp", "column at timestamp: expected string, boolean"),
        ("key string, m array<map<string,string>>", "column m array<map<string,string>>: expected"),
        ("key string, document string, n int", "column document is the whole document"),
    ):
        with pytest.raises(WrongOption, match=f"redis-json: .*{problem}"):
            write(place, ddl, [])
        with pytest.raises(WrongOption, match=f"redis-json: .*{problem}"):
            rows_of(place, ddl, keys="x")


def test_keys_of_other_types_and_servers_without_documents_are_reported(here: Any, redis_url: str) -> None:
    from penstock.spark.sources.documents import check_reply

    here.hset("hash", "n", 1)
    with pytest.raises(WrongType, match="hash holds a hash, expected a string"):
        rows_of({"url": redis_url, "storage": "string"}, keys="hash")
    with pytest.raises(WrongType, match="hash holds a hash, expected a JSON document"):
        check_reply(here, b"hash", ResponseError("Existing key has wrong Redis type"), plain=False)
    for ttl in ("0", "60"):
        with pytest.raises(WrongOption, match=r"storage: json: the server knows no JSON documents: .*Redis 8"):
            write({"url": redis_url}, "key string, n int", [("x", 1)], ttl=ttl)
    with pytest.raises(WrongOption, match="storage: json: the server knows no JSON documents"):
        rows_of({"url": redis_url}, keys="x")
