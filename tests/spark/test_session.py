"""The session that services and commands make: what it decides, and what it leaves to spark-submit."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from penstock.errors import Unsuitable
from penstock.spark import register
from penstock.spark import session as sessions
from penstock.spark.session import masters, wait_for_master
from penstock.spark.shipping import SHIPPED, ship
from penstock.testing.server import free_port
from tests.harness import ROOT, until
from tests.spark import pytestmark  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOLD = """
import os, sys, time
from penstock.spark.session import session
spark = session("local[1]", "512m")
print(spark.sparkContext.getConf().get("spark.driver.host"), spark.range(7).count(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("master", "found"),
    [
        ("spark://one:7077", [("one", 7077)]),
        ("spark://one:7077,two:7078", [("one", 7077), ("two", 7078)]),
        ("spark://one", []),
        ("local[2]", []),
        ("yarn", []),
        ("k8s://https://host:443", []),
    ],
)
def test_only_a_standalone_cluster_has_masters(master: str, found: list[tuple[str, int]]) -> None:
    assert masters(master) == found


def test_a_master_that_is_starting_is_waited_for_and_no_other_kind() -> None:
    port, listening = free_port(), list[socket.socket]()

    def listen() -> None:
        listening.append(socket.create_server(("127.0.0.1", port)))

    threading.Timer(0.3, listen).start()
    begun = time.monotonic()
    wait_for_master(f"spark://127.0.0.1:{free_port()},127.0.0.1:{port}")
    assert 0.2 < time.monotonic() - begun < 10
    listening[0].close()
    wait_for_master("yarn")


def test_a_master_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PATIENCE", 0.2)
    master = f"spark://127.0.0.1:{free_port()}"
    with pytest.raises(Unsuitable, match=f"there is no Spark master at {master} .*refused"):
        wait_for_master(master)


def test_nothing_is_shipped_to_workers_that_see_our_files(spark: "SparkSession") -> None:
    from pyspark import SparkFiles

    ship(spark)
    assert not (Path(SparkFiles.getRootDirectory()) / SHIPPED).exists()


def test_its_java_listens_here_alone_obeys_us_alone_and_ends_with_us() -> None:
    """A SIGTERM to the process group is for Python, which ends a micro-batch first; a SIGKILL takes Java along."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["localhost", "7"]
        java = [each for each in psutil.Process(process.pid).children(recursive=True) if "java" in each.name()]
        assert len(java) == 1
        assert os.getpgid(java[0].pid) != process.pid
        assert {each.laddr.ip for each in java[0].net_connections() if each.status == "LISTEN"} <= {
            *("127.0.0.1", "::1", "::ffff:127.0.0.1")
        }
        process.kill()
    until(lambda: not java[0].is_running())


@pytest.mark.parametrize("name", ["python-without", "not-there"])
def test_workers_that_cannot_import_penstock_are_warned_of(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    register(spark)  # which warns of nothing: warnings are errors
    python = tmp_path / "python-without"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(spark.sparkContext, "pythonExec", str(tmp_path / name))
        with pytest.warns(UserWarning, match=rf"run {tmp_path / name}, .* set PYSPARK_PYTHON={sys.executable} before"):
            register(spark)
    register(spark)  # Spark keeps with each format the Python that it was registered with
