"""The formats on a standalone cluster, by spark-submit with a wheel; the workers have no penstock installed."""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from redis import Redis

from penstock.base.keys import Keys
from penstock.spark.shipping import SHIPPED
from penstock.testing.server import EmbeddedServer
from tests.spark import (
    add_events,
)
from tests.spark.standalone import SMALL, Cluster, cluster, run, running, wheel
from tests.support.harness import until

ONE, TWO = 60_000, 1_000
"""Events of two namespaces; the first stream is split into two tasks."""
AWAY = 5_000
"""Events that are added at a time."""

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
events = spark.readStream.format("redis-stream").options(**given).option("maxOffsetsPerTrigger", 40_000).load()
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

ROUNDS = min(5, int(os.environ.get("PENSTOCK_SPARK_ROUNDS", "0")))
"""Kills of the driver, and of a worker before it; each is another start of Spark."""
TIMEOUT_SECONDS = float(os.environ.get("SPARK_PATIENCE", "300"))
COPIER = """
import sys
from penstock.spark.session import session

url, place = sys.argv[1:]
spark = session()
given = {"url": url, "keys": "away:events", "partitions": 2, "maxOffsetsPerTrigger": 1_000}
events = spark.readStream.format("redis-stream").options(**given).load().selectExpr("id as value")
writer = events.writeStream.format("redis-list").options(url=url, key="away:ids", checkpointLocation=place)
writer.start().awaitTermination()
"""
"""Copies the ids of events to a list until it is killed."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def master(nodes: Cluster) -> str:
    return nodes.url


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """Start a server with both streams and yield its URL."""
    with EmbeddedServer() as server, Redis.from_url(server.url) as redis:
        add_events(redis, ONE, keys=Keys("shop:one"), each=100)
        add_events(redis, TWO, keys=Keys("shop:two"))
        yield server.url


def submit(master: str, *words: str | Path, cwd: Path) -> None:
    """Run spark-submit as ``submission`` says."""
    command, environment = submission(master, *words, cwd=cwd)
    status, said = run(*command, cwd=cwd, environment=environment, seconds=200)
    assert status == 0, said[-8000:]


def submission(master: str, *words: str | Path, cwd: Path) -> tuple[list[str | Path], dict[str, str]]:
    """Return the command and environment of spark-submit, with a Python that has packages but not this repository."""
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
    command = ["spark-submit", "--master", master, *java, *given, *words]
    return command, environment | {"PYSPARK_PYTHON": str(python)}


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


@pytest.mark.skipif(not ROUNDS, reason="as many kills as PENSTOCK_SPARK_ROUNDS says, as in make test-soak")
def test_a_killed_worker_and_a_driver_restarted_elsewhere_lose_and_double_nothing(
    nodes: Cluster, shop: str, tmp_path: Path
) -> None:
    """Each driver has a directory of its own, and the checkpoint of the one before."""
    made = 0
    with Redis.from_url(shop) as redis:

        def add_more() -> int:
            """Add events and return how many ids there are once one more has been copied."""
            nonlocal made
            more = copied(redis) + 1
            add_events(redis, AWAY, start=made + 1, keys=Keys("away"))
            made += AWAY
            return more

        for number in range(ROUNDS + 1):
            until(nodes.are_registered, TIMEOUT_SECONDS)
            home = tmp_path / f"driver{number}"
            home.mkdir()
            more = add_more()
            with copier(nodes, shop, tmp_path / "checkpoint", home) as is_alive:
                until(lambda more=more: is_alive() and copied(redis) >= more, TIMEOUT_SECONDS)  # type: ignore[misc]
                if number < ROUNDS:
                    time.sleep(random.random() / 2)  # a moment of the micro-batch
                    nodes.kill_a_worker()
                    nodes.add_worker()
                    more = add_more()
                    until(lambda more=more: is_alive() and copied(redis) >= more, TIMEOUT_SECONDS)  # type: ignore[misc]
                    time.sleep(random.random() / 2)
                else:
                    until(lambda: is_alive() and copied(redis) >= made, TIMEOUT_SECONDS)
        assert redis.lrange("away:ids", 0, -1)[::-1] == [b"%d" % id for id in range(1, made + 1)]


@contextmanager
def copier(nodes: Cluster, url: str, checkpoint: Path, home: Path) -> Iterator[Callable[[], bool]]:
    """Submit ``COPIER`` from ``home`` and yield a function that fails if it has ended; kill it at the end."""
    (home / "script.py").write_text(COPIER)
    words = ("--py-files", wheel(home), home / "script.py", url, checkpoint)
    command, environment = submission(nodes.url, *words, cwd=home)
    with running(*command, log=home / "log", cwd=home, environment=environment) as driver:

        def is_alive() -> bool:
            assert driver.poll() is None, (home / "log").read_text()[-8000:]
            return True

        yield is_alive


def copied(redis: Any) -> int:
    length: int = redis.llen("away:ids")
    return length


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
