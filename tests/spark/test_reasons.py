"""Errors of Spark as one line: what happened, where, and what to do."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from redis.asyncio import Redis

from penstock.base.errors import PenstockError, QueryFailed
from penstock.base.keys import Keys
from penstock.spark.archive import BEGUN
from penstock.spark.reasons import java_ended, reason
from services.pipeline.merging import Merger
from services.pipeline.service import one_line_errors, query_error
from tests.spark import DataFrame, SparkSession
from tests.support.commandline import penstock
from tests.support.tracked import policy

FULL = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "archive.py", line 71, in write
    overwrite(events, f"{self._directory}/{EVENTS}", "date", "namespace", "batch")
py4j.protocol.Py4JJavaError: An error occurred while calling o216.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 2.0 failed 4 times, most recent
failure: [TASK_WRITE_FAILED] Task failed while writing rows to file:/data/a b/events/.spark-staging-0. SQLSTATE: 58030
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
"""


WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "archiving.py", line 156, in _write
    self._writer.write_table(group)
OSError: [Errno 27] Error writing bytes to file. Detail: [errno 27] File too large
 SQLSTATE: 39000
\tat org.apache.spark.sql.Dataset.collect(Dataset.scala:60)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 600 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def failure(spark: "SparkSession", archive: str, place: Path) -> Any:
    """Return the error of a query with its checkpoint in ``place`` that writes below ``archive``."""

    def write(rows: "DataFrame", _: int) -> None:
        rows.selectExpr("*", "randstr(100, 1) noise").write.mode("overwrite").parquet(f"{archive}/events")

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50_000).load()
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{place}/_checkpoint").start()
    try:
        query.awaitTermination(120)
    except PySparkException as error:
        return error
    return None


@pytest.mark.usefixtures("spark")
def test_a_full_disk_is_named_with_the_directory_and_what_to_do(
    spark: "SparkSession", small_disk: Path, tmp_path: Path
) -> None:
    error = query_error(str(failure(spark, f"{small_disk}/archive", tmp_path)), "elsewhere")
    assert isinstance(error, QueryFailed)
    wanted = (
        f"{small_disk}/archive/events: the disk is full: make room and start again; nothing that was written is lost"
    )
    assert str(error) == wanted
    with pytest.raises(QueryFailed, match=r"^[^\n]*the disk is full: make room"), one_line_errors("elsewhere"):
        spark.range(100_000).selectExpr("randstr(100, 1)").write.parquet(f"{small_disk}/other")


def test_a_directory_that_cannot_be_written_is_named_in_one_line(spark: "SparkSession", tmp_path: Path) -> None:
    wanted = "cannot be written: make it writable for this user, or name another directory"
    with pytest.raises(QueryFailed) as raised, one_line_errors("/proc/archive"):
        raise failure(spark, str(tmp_path), Path("/proc/archive"))
    assert str(raised.value) == f"/proc/archive/_checkpoint {wanted}"
    with pytest.raises(QueryFailed) as raised, one_line_errors("/proc/archive"):
        spark.range(1).write.parquet("/proc/archive/events")
    assert str(raised.value).startswith("/proc/archive/events")
    assert str(raised.value).endswith(wanted)


def test_an_archive_that_has_become_read_only_is_named(spark: "SparkSession", small_disk: Path) -> None:
    """What a former pipeline has left there cannot be taken away."""
    (small_disk / "archive" / BEGUN).mkdir(parents=True)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(PenstockError, match="archive/_merging cannot be written: make it writable for this user"):
        Merger(spark, str(small_disk / "archive"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FULL, "/data/a b/events: the disk is full"),
        (FULL.replace("events/.spark-staging-0", "_merging/0c1d"), "/data/a b: the disk is full"),
        ("[STREAM_FAILED] Query terminated: what\n at x\nCaused by: java.lang.Error: why", "[STREAM_FAILED] Query"),
        ("An error occurred while calling o1.count.\n: a.B: c\nCaused by: java.io.IOException: it is so", "it is so"),
        ("x\nCaused by: java.lang.OutOfMemoryError: Java heap space", "Spark's Java ran out of memory: give it more"),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.", "/data: another pipeline has taken over"),
        ("Multiple streaming queries are concurrently using file:/data.", "/data: another pipeline has taken over"),
        (WORKER, "OSError: [Errno 27] Error writing bytes to file. Detail: [errno 27] File too large"),
        ("", ""),
    ],
)
def test_what_matters_of_a_long_text_is_one_line(text: str, said: str) -> None:
    assert reason(text, "/data").startswith(said)
    assert "\n" not in reason(text)


KILLED = """
import os, sys
from penstock.cli._archive import spark_session
from pyspark import SparkContext
with spark_session("local[1]", "512m") as spark:
    rows = spark.range(3).rdd.map(lambda each: each).collect()
    os.kill(SparkContext._gateway.proc.pid, 9)
    spark.range(3).count()
"""


def test_a_java_that_was_killed_is_named_and_not_taken_for_redis() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=300)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "penstock.cli._frame.Failed: Spark: Spark's Java process was killed (SIGKILL): see the system"
    )
    assert "Exception occurred during processing" not in done.stderr


def test_a_java_that_ended_for_lack_of_memory_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends it with a status of its own."""
    from pyspark import SparkContext

    with subprocess.Popen(["sh", "-c", "exit 52"]) as process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        assert java_ended() == reason("java.lang.OutOfMemoryError: Java heap space")


@pytest.mark.parametrize("command", [["report", "--all"], ["reconcile"], ["replay", "--into", "shadow"]])
async def test_a_missing_archive_is_named_before_spark_starts(
    command: list[str], tmp_path: Path, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await policy(redis, Keys("shadow"), source="shadow:in", out="shadow:out", done="shadow:done")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    for place, named in ((tmp_path / "nothere", ""), (tmp_path, "/events")):
        result = await penstock(*command, "--archive", str(place), redis=redis_url)
        assert (result.status, result.out) == (1, b"")
        expected = f"{place}{named}: there is no archive; expected the directory that a pipeline writes"
        assert expected in result.error.replace("\n", "")
