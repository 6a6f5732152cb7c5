"""Servers that are reached in other ways: a Redis Cluster, Sentinel, and TLS with certificates of both sides."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from penstock.base.errors import WrongOption
from penstock.spark.options import Options, connect
from penstock.spark.sources.lists import OPTIONS
from penstock.testing.server import EmbeddedServer
from tests.spark import SparkSession, add_events, schema_of
from tests.support.harness import until
from tests.support.redis_cluster import Node, move_slot, two_nodes
from tests.support.servers import sentinel
from tests.support.tls import certificate, encrypted, needs_openssl

Nodes = tuple[Node, Node]


@pytest.fixture(scope="module")
def cluster(spark: "SparkSession") -> Iterator[Nodes]:
    with two_nodes() as nodes:
        yield nodes


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    for node in cluster:
        node.client.flushall()
    return cluster


def url_of(nodes: Nodes) -> str:
    return f"redis+cluster://127.0.0.1:1,127.0.0.1:{nodes[1].server.port}"


@pytest.fixture
def as_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.sinks.writers.query_of_task", lambda: "q")


def sizes(nodes: Nodes) -> list[int]:
    return [node.client.dbsize() for node in nodes]


def test_hashes_of_all_slots_are_written_and_read(spark: "SparkSession", nodes: Nodes) -> None:
    frame = spark.range(3000).selectExpr("concat('user:', id) key", "id hits")
    writer = frame.write.format("redis-hash").options(url=url_of(nodes), ttl="600").mode("overwrite")
    writer.save()
    assert sum(sizes(nodes)) == 3000
    assert min(sizes(nodes)) > 1000
    read = spark.read.format("redis-hash").options(url=url_of(nodes), keys="user:*", partitions="2")
    found = read.schema("key string, hits long").load().collect()
    assert sorted(map(tuple, found)) == sorted(map(tuple, frame.collect()))
    assert all(0 < node.client.ttl(node.client.randomkey() or "") <= 600 for node in nodes)


def test_streams_of_all_slots_are_written_once_and_read(nodes: Nodes, as_query: None) -> None:
    from penstock.spark.streams import RedisStream

    keys = [f"orders:{number}" for number in range(20)]
    batch = pa.RecordBatch.from_pydict({"key": keys * 50, "n": pa.array(range(1000), pa.int64())})
    writer: Any = RedisStream({"url": url_of(nodes)}).streamWriter(schema_of("key string, n long"), False)
    for _ in range(2):
        writer.commit([writer.write(iter([batch]))], 0)
    assert min(sizes(nodes)) > 10
    text = schema_of("key string, entry string, timestamp timestamp, fields map<string,string>")
    given = {"url": url_of(nodes), "keys": "orders:*", "entries": "raw"}
    reader: Any = RedisStream(given).streamReader(text)
    end = reader.latestOffset({}, reader.getDefaultReadLimit())
    moved = next(key for key in keys if nodes[0].client.cluster("KEYSLOT", key) < 8192)
    move_slot(key_slot(moved.encode()), *nodes)
    try:
        rows = [row for part in reader.partitions({}, end) for each in reader.read(part) for row in each.to_pylist()]
        found = [(row["key"], int(dict(row["fields"])["n"])) for row in rows]
        assert sorted(found) == sorted(zip(keys * 50, range(1000), strict=True))
    finally:
        move_slot(key_slot(moved.encode()), *reversed(nodes))


def test_lists_in_any_slot_are_taken_and_filled_once(nodes: Nodes, as_query: None) -> None:
    from penstock.spark.lists import RedisList

    with connect(url_of(nodes)) as client:
        for name in ("one", "two", "{tag}:three"):
            client.lpush(name, *map(str, range(100)))
            reader: Any = RedisList({"url": url_of(nodes), "key": name}).streamReader(
                schema_of("value binary, position long")
            )
            end = reader.latestOffset({"sequence": 0}, reader.getDefaultReadLimit())
            assert client.llen(name) == 0
            batches = [each for part in reader.partitions({"sequence": 0}, end) for each in reader.read(part)]
            out = f"out:{name}"
            writer: Any = RedisList({"url": url_of(nodes), "key": out}).streamWriter(
                schema_of("value binary, position long"), False
            )
            for _ in range(2):
                writer.commit([writer.write(iter(batches))], 0)
            assert client.lrange(out, 0, -1) == [b"%d" % number for number in reversed(range(100))]
            reader.commit(end)
        assert client.llen("none") == 0
    assert sum(sizes(nodes)) == 3 * 3  # the list, its ledger, and the state of the query


def test_events_of_namespaces_in_several_slots_are_read(nodes: Nodes) -> None:
    from penstock.base.keys import Keys
    from penstock.spark.streams import RedisStream

    for name in ("{one}", "{two}", "{three}"):
        slot = key_slot(name.encode())
        add_events(nodes[slot >= 8192].client, 50, keys=Keys(name))
    reader: Any = RedisStream({"url": url_of(nodes), "keys": "*:events"}).reader(schema_of("entry string"))
    rows = [row for part in reader.partitions() for each in reader.read(part) for row in each.to_pylist()]
    assert sorted((row["namespace"], int(row["id"])) for row in rows) == sorted(
        (name, number) for name in ("{one}", "{two}", "{three}") for number in range(1, 51)
    )


def test_adding_to_hashes_of_a_cluster_is_refused() -> None:
    from penstock.spark.hashes import RedisHash

    given = {"url": "redis+cluster://127.0.0.1:1", "mode": "add"}
    with pytest.raises(WrongOption, match="mode: add does not work on a Redis Cluster"):
        RedisHash(given).writer(schema_of("key string, n long"), overwrite=False)


def test_the_server_that_sentinels_name_is_read(spark: "SparkSession", tmp_path: Path) -> None:
    with EmbeddedServer(requirepass="p@ss") as server, sentinel(tmp_path, server.port, "p@ss") as port:
        url = f"redis+sentinel://:p%40ss@127.0.0.1:1,127.0.0.1:{port}/mine?db=2"
        client = connect(url)

        def answers() -> bool:
            try:
                return bool(client.ping())
            except (RedisError, OSError):
                return False

        with client:
            until(answers)
            client.lpush("in", "one", "two")
            assert client.client_info()["db"] == 2
            with Redis(port=port, protocol=2) as there:
                assert [each["name"] for each in there.client_list()] == [""]  # ours to the sentinel is closed
        file = tmp_path / "url"
        file.write_text(url + "\n")
        read = spark.read.format("redis-list").options(urlFile=str(file), key="in", text="true").load()
        assert [row.value for row in read.orderBy("position").collect()] == ["one", "two"]


@needs_openssl
async def test_certificates_of_both_sides_are_checked(spark: "SparkSession", tmp_path: Path, redis_url: str) -> None:
    ours, theirs, wrong = (certificate(tmp_path / name, "491231") for name in ("ours", "theirs", "wrong"))
    with connect(redis_url) as client:
        client.flushall()
        client.lpush("in", "one")
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    tls = {"tlsCa": str(theirs), "tlsCert": str(ours), "tlsKey": str(ours.with_name("key.pem"))}

    def read(**options: str) -> list[str]:
        frame = spark.read.format("redis-list").options(key="in", text="true", **options).load()
        return [row.value for row in frame.collect()]

    async with encrypted(port, theirs, clients=ours) as front:
        url = f"rediss://localhost:{front}/0"
        assert await asyncio.to_thread(read, url=url, **tls) == ["one"]
        given = Options("redis-list", {"url": url, **tls, "tlsCa": str(wrong)}, OPTIONS).url()
        with connect(given) as client, pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(client.ping)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "option url: missing"),
        ({"url": "redis://h", "urlFile": "f"}, "option urlFile: given, and url, too"),
        ({"urlFile": "/nowhere/url"}, "option urlFile: there is no file /nowhere/url; every worker needs it, too"),
        ({"url": "rediss://h", "tlsCa": "/nowhere/ca"}, "option tlsCa: there is no file /nowhere/ca"),
        ({"url": "redis://u:secret@h", "tlsCa": __file__}, r"'redis://u:\*\*\*@h': TLS needs rediss://"),
        ({"url": "http://u:secret@h"}, r"option url: 'http://u:\*\*\*@h': not the URL of a server"),
    ],
)
def test_wrong_addresses_are_reported_without_passwords(given: dict[str, str], expected: str) -> None:
    with pytest.raises(WrongOption, match=expected):
        Options("redis-list", given, OPTIONS).url()
