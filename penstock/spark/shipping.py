"""Shipping of our code to the workers of a cluster; only its dependencies must be installed there."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHIPPED: Final = "penstock-of-the-driver.zip"
STREAMING: Final = "streaming_job"
"""Directory in which a stream reader searches shipped files, though Spark puts none there (4.3)."""


def ship(spark: "SparkSession") -> None:
    """Let workers import the ``penstock`` of this process, whether one is installed there or not.

    Call it before a format is registered; a second call changes nothing. A wheel in ``--py-files`` reaches the driver
    only.
    """
    if is_remote(spark):
        with TemporaryDirectory() as place:
            spark.addArtifacts(str(_packed(Path(place) / SHIPPED)), pyfile=True)
        return
    context = spark.sparkContext
    if str(context.master).startswith("local") and Path(__file__).is_file():
        return  # local workers see our files
    from pyspark import SparkFiles

    root = Path(SparkFiles.getRootDirectory())
    archive = root / SHIPPED
    if archive.exists():
        return
    context.addPyFile(str(_packed(archive)))
    (root / STREAMING).mkdir(exist_ok=True)
    copy(archive, root / STREAMING)


def is_remote(spark: "SparkSession") -> bool:
    """Return True for a session of Spark Connect, which has no Java of its own."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def what_workers_lack(spark: "SparkSession") -> str | None:
    """Return why local workers cannot use our formats, and what to do; None if they can.

    By default Spark runs them with ``python3`` of PATH, which is another Python if our venv is not activated. Workers
    of a cluster, and those of a Spark Connect server, are not checked.
    """
    if is_remote(spark):
        return None
    context = spark.sparkContext
    python = shutil.which(context.pythonExec) or context.pythonExec
    if python == sys.executable or not str(context.master).startswith("local"):
        return None
    try:
        tried = subprocess.run(
            [python, "-c", "import penstock.spark.lists"], capture_output=True, text=True, timeout=30
        )
        problem = tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if not problem:
        return None
    remedy = f"set PYSPARK_PYTHON={sys.executable} before Spark starts, or begin with penstock.spark.session.session()"
    return f"Spark's workers run {python}, which cannot import penstock.spark ({problem}): {remedy}"


def _packed(archive: Path) -> Path:
    """Write our code to ``archive``, and return that."""
    with ZipFile(archive, "w", ZIP_DEFLATED) as file:
        for name, content in _sources(files("penstock"), "penstock"):
            file.writestr(ZipInfo(name), content)
    return archive


def _sources(place: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each Python and Lua file below ``place``; names begin with ``name``."""
    for each in place.iterdir():
        below = f"{name}/{each.name}"
        if each.is_dir():
            yield from _sources(each, below)
        elif each.name.endswith((".py", ".lua")):
            yield below, each.read_bytes()
