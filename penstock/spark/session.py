"""A session of Spark that knows our formats, where there is what it needs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import Unsuitable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""


def session(master: str = "local[2]", memory: str = "1g", name: str = "penstock", **more: str) -> "SparkSession":
    """The session of this process; ``more`` are settings of Spark's, ``_`` for a dot.

    Raises ``Unsuitable`` where there is no PySpark or no Java that it runs on.
    """
    if problem := what_is_missing():
        raise Unsuitable(problem)
    from pyspark.sql import SparkSession

    from penstock.spark import register

    if master.startswith("local"):  # else Spark takes the python3 of PATH for its workers, which may be another
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": "-Dlog4j2.level=ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.parquet.compression.codec": "zstd",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    builder: Any = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def what_is_missing() -> str | None:
    """Why there can be no Spark here, and what to do."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "Spark is not installed: pip install 'penstock[spark]'"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    try:
        told = subprocess.run([java or "java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return f"there is no Java ({where}): install Java {JAVA} or newer, or set JAVA_HOME"
    version = re.search(r'version "(?:1\.)?(\d+)', told)
    if version and int(version[1]) < JAVA:
        return f"Java {version[1]} is too old ({where}): Spark needs {JAVA} or newer"
    return None
