"""Completeness of merged directories of an archive: a complete one replaces the directories that it covers.

A merged directory is complete once it has a manifest, which names its files and is written last. So a file system may
rename a directory file by file, as object stores do. Older versions wrote no manifest, and deleted the covered
directories only after the merged one was in place. Without a manifest, a directory is complete if it has at least as
many rows as the covered ones that are left: an interrupted one has fewer, since all of those are left.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.archive import Batches, covered, file_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST: Final = "_merged"
"""Name of the manifest; readers of Parquet ignore names with an underscore."""
DAMAGED: Final = ("CANNOT_READ_FILE_FOOTER", "is not a Parquet file", "ChecksumException")
"""Errors of Spark and Hadoop for a truncated file."""


def stale_directories(spark: "SparkSession", paths: Mapping[Batches, str]) -> tuple[set[Batches], set[Batches]]:
    """Apply ``find_stale`` to the directories ``paths`` of one partition; read only those that cover others."""

    def rows(several: Iterable[Batches]) -> int:
        return count(spark, [paths[each] for each in several])

    return find_stale(paths, lambda each: is_complete(spark, paths[each]), rows)


def find_stale(
    batches: Collection[Batches], has_manifest: Callable[[Batches], bool], rows: Callable[[Iterable[Batches]], int]
) -> tuple[set[Batches], set[Batches]]:
    """Return the covered directories of one partition, and the incomplete merged ones.

    ``rows`` counts the rows of some of them; -1 means that a file cannot be read.
    """
    merged = sorted((each for each in batches if each.last > each.first), key=lambda each: each.last - each.first)
    complete, broken = set(batches) - set(merged), set[Batches]()
    for each in merged:
        beneath = {other for other in complete if each.covers(other)}
        if not beneath or has_manifest(each) or _has_all(rows, each, beneath - covered(beneath)):
            complete.add(each)
        else:
            broken.add(each)
    return covered(complete), broken


def _has_all(rows: Callable[[Iterable[Batches]], int], merged: Batches, beneath: set[Batches]) -> bool:
    """Return True if ``merged`` has all rows of ``beneath``; False if one of these cannot be read."""
    found, wanted = rows([merged]), rows(beneath)
    return 0 <= wanted <= found


def count(spark: "SparkSession", directories: list[str]) -> int:
    """Return the number of rows in ``directories``, -1 if a file is truncated."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return spark.read.schema("entry string").parquet(*directories).count()
    except (Py4JError, PySparkException) as error:
        if not _is_damage(error):
            raise
        return -1


def _is_damage(error: Exception) -> bool:
    return any(word in str(error) for word in DAMAGED)


def files_in(spark: "SparkSession", directory: str) -> dict[str, int]:
    """Return the size (bytes) of each data file by its name."""
    files, place = file_of(spark, directory)
    found = {str(each.getPath().getName()): int(each.getLen()) for each in files.listStatus(place) if each.isFile()}
    return {name: size for name, size in found.items() if not name.startswith(("_", "."))}


def write_manifest(spark: "SparkSession", directory: str, named: Mapping[str, int]) -> None:
    """Write the manifest: ``directory`` is complete if it has the files ``named``, of these sizes."""
    files, place = file_of(spark, f"{directory}/{MANIFEST}")
    stream = files.create(place, True)
    stream.write(json.dumps({"files": dict(named)}).encode())
    stream.close()


def is_complete(spark: "SparkSession", directory: str) -> bool:
    """Return True if a manifest exists, and every file that it names."""
    from py4j.protocol import Py4JJavaError

    files, place = file_of(spark, f"{directory}/{MANIFEST}")
    if not files.exists(place):
        return False
    java: Any = spark._jvm
    stream = files.open(place)
    try:
        text = str(java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        named = json.loads(text)["files"]
    except Py4JJavaError as error:
        if not _is_damage(error):
            raise
        return False
    except (ValueError, KeyError, TypeError):
        return False
    finally:
        stream.close()
    return bool(named.items() <= files_in(spark, directory).items())
