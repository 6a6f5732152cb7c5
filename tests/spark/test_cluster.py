"""The formats on a standalone cluster, by spark-submit with a wheel; the workers have no penstock installed."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from redis import Redis

from penstock.keys import Keys
from penstock.spark.shipping import SHIPPED
from penstock.testing.server import EmbeddedServer
from tests.spark import (
    add_events,
    pytestmark,  # noqa: F401
)
from tests.spark.standalone import SMALL, cluster, run, wheel

ONE, TWO = 60_000, 1_000
"""Events of two namespaces; the first stream is split into two tasks."""

SCRIPT = """
import json, os, sys
import penstock
from penstock.spark.session import session

url, place = sys.argv[1:]
spark = session()
given = {"url": url, "keys": "shop:*:events", "partitions": 4}


def describe(rows):
    import penstock.spark.streams
    yield os.getcwd(), sum(1 for _ in rows), penstock.spark.streams.__file__


parts = spark.read.format("redis-stream").options(**given).load().rdd.mapPartitions(describe).collect()
events = spark.readStream.format("redis-stream").options(**given).option("maxEventsPerTrigger", 40_000).load()
writer = events.writeStream.format("parquet").options(path=f"{place}/archive", checkpointLocation=f"{place}/checkpoint")
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
batches = [each["batchId"] for each in query.recentProgress]
ids = spark.readStream.format("redis-stream").options(url=url, keys="shop:two:events").load().selectExpr("id as value")
writer = ids.coalesce(1).writeStream.format("redis-list").options(url=url, key="ids", checkpointLocation=f"{place}/ids")
writer.trigger(availableNow=True).start().awaitTermination()
result = {"parts": parts, "driver": penstock.__file__, "master": spark.sparkContext.master, "batches": len(batches)}
with open(f"{place}/result.json", "w") as file:
    json.dump(result, file)
spark.stop()
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """Start a server with both streams and yield its URL."""
    with EmbeddedServer() as server, Redis.from_url(server.url) as redis:
        add_events(redis, ONE, keys=Keys("shop:one"), each=100)
        add_events(redis, TWO, keys=Keys("shop:two"))
        yield server.url


def submit(master: str, *words: str | Path, cwd: Path) -> None:
    """Run spark-submit, with a Python that has the installed packages but not this repository."""
    settings = {
        "spark.cores.max": "2",
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.extraJavaOptions": SMALL,
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    java = ["--driver-memory", "512m", "--driver-java-options", SMALL]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = cwd / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{get_path("purelib")} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    status, said = run(
        *("spark-submit", "--master", master, *java, *given, *words),
        cwd=cwd,
        environment=environment | {"PYSPARK_PYTHON": str(python)},
        seconds=200,
    )
    assert status == 0, said[-8000:]


def test_a_submitted_script_reads_with_all_workers_and_archives_every_event_once(
    master: str, shop: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    submit(master, "--py-files", wheel(tmp_path), tmp_path / "script.py", shop, tmp_path, cwd=tmp_path)
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    assert result["master"] == master
    assert ".whl/" in result["driver"]
    places, counts, sources = zip(*result["parts"], strict=True)
    assert len(set(places)) == 2  # executors
    assert min(counts) == TWO
    assert sum(counts) == ONE + TWO
    assert len(counts) == 3
    assert all(f"/{SHIPPED}/" in source for source in sources)
    assert result["batches"] > 1
    assert archived(tmp_path / "archive") == [
        (f"shop:{name}", number, str(number), f"x{number}")
        for name, many in (("one", ONE), ("two", TWO))
        for number in range(1, many + 1)
    ]
    with Redis.from_url(shop) as redis:
        assert redis.lrange("ids", 0, -1) == [str(number).encode() for number in range(TWO, 0, -1)]


def archived(place: Path) -> list[tuple[str, int, str, str]]:
    """Return every row that the sink's metadata lists."""
    import pyarrow.parquet as pq

    logs = [log for log in (place / "_spark_metadata").iterdir() if log.name.isdigit()]
    files = [json.loads(line)["path"] for log in logs for line in log.read_text().splitlines()[1:]]
    return sorted(
        (row["namespace"], row["number"], row["id"], row["xid"])
        for file in files
        for row in pq.read_table(unquote(urlsplit(file).path)).to_pylist()
    )
