"""Spark sessions with our formats, and checks of what they need."""

import locale
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import Unsuitable
from penstock.base.launch import search_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""
EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # Spark's own, INT96, is no part of the format any more, and has no statistics by which files could be passed over.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # An archive has many small files: by default Spark would list each directory in a task of its own, and have no more
    # than 32 files in a partition.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.files.openCostInBytes": "262144",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
}
ALONE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # Hadoop starts a process for each file, to set its mode, and by default another for a file of its checksums, which
    # Parquet has itself.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
"""Settings of a session that spark-submit has not started."""
BY_ROW: Final = {"spark_sql_parquet_enableVectorizedReader": "false"}
"""To read messages: by columns Spark reads up to 4,096 values at once, which takes gigabytes if each has 10 MB."""
LATER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Code is optimised after ten times as many calls as usual: that took a third of the processor time of a start."""
LOGGING: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1"})
MASTER_START_SECONDS: Final = 30.0
"""Longest time that the master of a cluster may take to start."""


def session(
    master: str = "local[2]", memory: str = "1g", name: str = "penstock", *, java: str | None = None, **more: str
) -> "SparkSession":
    """Return the session of this process. ``more`` are settings of Spark, with ``_`` for a dot.

    ``java``: options of Java in place of those that make it use our archive of classes.

    Under spark-submit its options replace ``master`` and ``memory``. Raise ``Unsuitable`` if PySpark or a Java that it
    runs on is missing, or no master of a cluster answers at ``master``.
    """
    if problem := what_is_missing():
        raise Unsuitable(problem)
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from penstock.spark import register
    from penstock.spark.reasons import without_noise

    settings = EVERYWHERE | {key.replace("_", "."): value for key, value in more.items()}
    if not is_submitted():
        _choose_python(master)
        _choose_address(master)
        choose_encoding()
        wait_for_master(master)
        options = f"{LOGGING} {LATER}{java_options() if java is None else java}"
        alone = {"spark.master": master, "spark.driver.memory": memory, "spark.driver.extraJavaOptions": options}
        settings = {**alone, **ALONE, **settings}
    conf = SparkConf().setAppName(name).setAll(list(settings.items()))
    if not is_submitted() and SparkContext._gateway is None:
        # In a process group of its own: a SIGTERM to ours must not end Java before us. Java ends when we have ended.
        java = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext(conf=conf, gateway=java)
    builder: Any = SparkSession.builder
    spark: SparkSession = builder.config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    without_noise(spark)
    register(spark)
    return spark


def file_of_classes() -> Path:
    """Return where the archive is, or would be. PySpark must be installed."""
    spec = find_spec("pyspark")
    assert spec is not None
    return Path(str(spec.origin)).with_name("penstock-classes.jsa")


def java_options() -> str:
    """Return the option of Java to use the archive; nothing without one."""
    file = file_of_classes()
    return f" -XX:SharedArchiveFile={file} -Xlog:disable" if file.exists() else ""


def is_submitted() -> bool:
    """Return True if spark-submit has started this process, with a Java and settings of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _choose_python(master: str) -> None:
    """Run local workers with this Python; on other machines Spark takes the ``python3`` of PATH."""
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PATH"] = search_path(os.environ)


def _choose_address(master: str) -> None:
    """Listen on the loopback address alone if all workers are local, whatever name the machine has."""
    if master.startswith("local") or LOOPBACK.intersection(host for host, _ in masters(master)):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def choose_encoding() -> None:
    """Let Java write UTF-8 in the names of files. With ``LC_ALL=C`` each other letter would become ``?``."""
    if locale.getencoding().upper() != "UTF-8":
        os.environ["LC_ALL"] = "C.UTF-8"


def wait_for_master(master: str) -> None:
    """Wait until a master of a standalone cluster accepts connections; return at once for any other ``master``.

    Spark itself would retry every 20 s only. Raise ``Unsuitable`` after ``MASTER_START_SECONDS``.
    """
    until, problem, addresses = time.monotonic() + MASTER_START_SECONDS, "", masters(master)
    while addresses and time.monotonic() < until:
        for address in addresses:
            try:
                socket.create_connection(address, timeout=5).close()
            except OSError as error:
                problem = str(error)
            else:
                return
        time.sleep(0.1)
    if addresses:
        raise Unsuitable(f"there is no Spark master at {master} ({problem}): start it, or mend the setting master")


def masters(master: str) -> list[tuple[str, int]]:
    """Return host and port of each master of a standalone cluster, [] for any other ``master``."""
    scheme, _, hosts = master.partition("://")
    parts = (each.rpartition(":") for each in hosts.split(","))
    return [(host, int(port)) for host, _, port in parts if port.isdigit()] if scheme == "spark" else []


def what_is_missing() -> str | None:
    """Return why Spark cannot run here, and what to do; None if it can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "Spark is not installed: pip install 'penstock[spark]'"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    try:
        printed = subprocess.run([java or "java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return f"there is no Java ({where}): install Java {JAVA} or newer, or set JAVA_HOME"
    version = re.search(r'version "(?:1\.)?(\d+)', printed)
    if version and int(version[1]) < JAVA:
        return f"Java {version[1]} is too old ({where}): Spark needs {JAVA} or newer"
    return None
