"""What lets Spark start in half the time: an archive of the Java classes that it needs, and PySpark compiled.

Workers import PySpark from an archive without byte code, so each process of a worker compiles it: 0.5 s.
``python -m penstock.spark.classes`` writes both, once after PySpark was installed, as the image does. A Java or a
Python of another version does without.
"""

import py_compile
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from penstock.spark.session import file_of_classes, session, what_is_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXIT_SECONDS: Final = 300
"""Longest time in which Java may write the archive, as it ends."""


def compile_pyspark() -> None:
    """Add byte code of this Python to the archives of PySpark from which workers import it."""
    for archive in file_of_classes().parent.glob("python/lib/*.zip"):
        new = archive.with_suffix(".new")
        with ZipFile(archive) as old, ZipFile(new, "w", ZIP_DEFLATED) as file, tempfile.TemporaryDirectory() as place:
            for name in old.namelist():
                source = old.read(name)
                if not name.endswith(".pyc"):
                    file.writestr(ZipInfo(name), source, ZIP_DEFLATED)
                if name.endswith(".py"):
                    (script := Path(place) / "script.py").write_bytes(source)
                    code = py_compile.compile(
                        str(script),
                        dfile=name,
                        doraise=True,
                        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                    )
                    file.writestr(ZipInfo(f"{name}c"), Path(str(code)).read_bytes())
        shutil.copymode(archive, new)
        new.replace(archive)


def write() -> Path:
    """Run what a pipeline runs, and let Java write the classes that it has loaded, as it ends. Return the file."""
    from pyspark import SparkContext

    file = file_of_classes()
    file.unlink(missing_ok=True)
    new = file.with_suffix(".new")
    with tempfile.TemporaryDirectory() as place:
        spark = session("local[2]", "1g", java=f" -XX:ArchiveClassesAtExit={new} -Xlog:disable")
        _work(spark, place)
        spark.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXIT_SECONDS)
    return new.replace(file)


def _work(spark: "SparkSession", place: str) -> None:
    """Archive some events of a stream, and roll them up, as ``services.pipeline`` does."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from penstock.spark.archive import DDL, EVENTS, MINUTES, RECENT, events, overwrite
    from penstock.spark.rollups import minutes, windows

    columns = [F.lit(None).cast(kind).alias(name) for name, kind in (word.split() for word in DDL.split(", "))]

    def write_batch(batch: "DataFrame", number: int) -> None:
        seen, name = Observation(), F.lit(f"warm-{number:09d}")
        rows = batch.select(*columns).withColumns({"at": F.current_timestamp(), "batch": name})
        overwrite(rows.observe(seen, F.count("at").alias("many")), f"{place}/{RECENT[EVENTS]}", "batch")
        parts = spark.createDataFrame(minutes(events(spark, place)).toArrow()).coalesce(1)
        overwrite(parts.withColumns({"hour": F.lit("now"), "batch": name}), f"{place}/{RECENT[MINUTES]}", "batch")
        windows(spark.read.parquet(f"{place}/{RECENT[MINUTES]}"), "hour").collect()

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1_000).load()
    writer: Any = stream.writeStream.foreachBatch(write_batch).option("checkpointLocation", f"{place}/checkpoint")
    query = writer.trigger(processingTime="1 hour").start()
    while not query.lastProgress and not query.awaitTermination(0.5):
        pass
    query.stop()


if __name__ == "__main__":
    ArgumentParser(prog="python -m penstock.spark.classes", description=__doc__).parse_args()
    if problem := what_is_missing():
        sys.exit(problem)
    compile_pyspark()
    file = write()
    print(f"{file}: {file.stat().st_size / 1e6:.0f} MB")
