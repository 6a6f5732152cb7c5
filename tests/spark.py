"""One Spark for all tests that need it, on this machine; they are skipped, with the reason, where there is no Java."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def why_not() -> str | None:
    """Why there is no Spark here."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not Path(java).exists():
        return "Spark needs Java 17 or newer: there is no java here"
    return None


pytestmark: Any = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.xdist_group("spark"),
]
"""What every module of Spark's tests has as its own: one process runs them all, with one session."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    from pyspark.sql import SparkSession

    from penstock.spark import register

    place = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    builder: Any = SparkSession.builder.master("local[2]").appName("penstock-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()
