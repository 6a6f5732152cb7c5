"""The session of services and commands: options that it sets, and those that it leaves to spark-submit."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from penstock.base.errors import Unsuitable
from penstock.base.ports import free_port
from penstock.spark import classes, register
from penstock.spark import session as sessions
from penstock.spark.session import masters, wait_for_master
from penstock.spark.shipping import SHIPPED, ship
from tests.spark import SparkSession
from tests.spark.pipelines import TIMEOUT_SECONDS


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


@pytest.mark.parametrize("given", ["C", "C.UTF-8", ""])
def test_java_writes_names_of_files_in_utf_8_in_any_locale(given: str) -> None:
    ask = "subprocess.run(['java', '-XshowSettings:properties', '-version'])"
    words = f"import subprocess; from penstock.spark.session import choose_encoding; choose_encoding(); {ask}"
    environment = {name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")}
    environment |= {"LC_ALL": given} if given else {}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True, text=True, check=True)
    assert "sun.jnu.encoding = UTF-8" in done.stderr


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
    monkeypatch.setattr(sessions, "MASTER_START_SECONDS", 0.2)
    master = f"spark://127.0.0.1:{free_port()}"
    with pytest.raises(Unsuitable, match=f"there is no Spark master at {master} .*refused"):
        wait_for_master(master)


def test_nothing_is_shipped_to_workers_that_see_our_files(spark: "SparkSession") -> None:
    from pyspark import SparkFiles

    ship(spark)
    assert not (Path(SparkFiles.getRootDirectory()) / SHIPPED).exists()


def test_a_session_of_spark_connect_gets_our_code_and_formats() -> None:
    """A stand-in, since Spark Connect needs packages that others do not: it has no ``sparkContext``."""
    sent: dict[str, list[str]] = {"files": [], "formats": []}

    class SparkSession:
        @property
        def dataSource(self) -> "SparkSession":
            return self

        def register(self, source: Any) -> None:
            sent["formats"].append(source.name())

        def addArtifacts(self, file: str, *, pyfile: bool) -> None:
            assert pyfile
            sent["files"] += ZipFile(file).namelist()

    class Conf:
        def set(self, name: str, value: str) -> None: ...

    SparkSession.__module__ = "pyspark.sql.connect.session"
    remote: Any = SparkSession()
    remote.conf = Conf()
    register(remote)
    assert {"redis-stream", "redis-list", "redis-hash"} <= set(sent["formats"])
    assert {"penstock/spark/lists.py", "penstock/spark/lua/publish.lua"} <= set(sent["files"])


@pytest.mark.parametrize("name", ["python-without", "not-there"])
def test_workers_that_cannot_import_penstock_are_warned_of(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    register(spark)  # no warning: warnings are errors
    python = tmp_path / "python-without"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(spark.sparkContext, "pythonExec", str(tmp_path / name))
        with pytest.warns(UserWarning, match=rf"run {tmp_path / name}, .* set PYSPARK_PYTHON={sys.executable} before"):
            register(spark)
    register(spark)  # Spark stores with each format the Python of its registration


@pytest.mark.slow
def test_a_session_takes_classes_from_the_archive_and_does_without_if_that_is_of_another_java(tmp_path: Path) -> None:
    file, log = tmp_path / "classes.jsa", tmp_path / "log"
    head = (
        "from pathlib import Path; from penstock.spark import classes;"
        f" classes.file_of_classes = lambda: Path({str(file)!r});"
    )
    subprocess.run((sys.executable, "-c", f"{head} classes.write()"), check=True, timeout=TIMEOUT_SECONDS)
    begin = (
        f"{head} from penstock.spark.session import session;"
        f" spark = session(java=classes.java_options() + ' -Xlog:class+load:file={log}'); print(spark.range(5).count())"
    )
    for content in (file.read_bytes(), b"of another Java"):
        file.unlink()
        file.write_bytes(content)
        done = subprocess.run(
            (sys.executable, "-c", begin), check=True, stdout=subprocess.PIPE, timeout=TIMEOUT_SECONDS
        )
        shared = log.read_text().count("source: shared objects file (top)")
        assert (done.stdout.split()[-1:], shared > 5_000) == ([b"5"], content != b"of another Java")


def test_the_copy_of_pyspark_that_workers_import_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "python/lib/some.zip"
    archive.parent.mkdir(parents=True)
    with ZipFile(archive, "w") as file:
        file.writestr("some/__init__.py", "")
        file.writestr("some/module.py", "def found():\n    return __file__\n")
        file.writestr("some/data.txt", "1")
    monkeypatch.setattr(classes, "file_of_classes", lambda: tmp_path / "classes.jsa")
    for _ in range(2):
        classes.compile_pyspark()
    assert [*archive.parent.iterdir()] == [archive]
    with ZipFile(archive) as file:
        names = ["some/__init__.py", "some/__init__.pyc", "some/module.py", "some/module.pyc", "some/data.txt"]
        assert file.namelist() == names
    line = "from some.module import found; print(found(), found.__code__.co_filename)"
    done = subprocess.run(
        (sys.executable, "-c", line), env={"PYTHONPATH": str(archive)}, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [f"{archive}/some/module.pyc", "some/module.py"]
