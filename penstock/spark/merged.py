"""Merged directories of an archive: which of them are complete, and so stand for what they cover.

A merged directory is complete once its manifest is there, which names its files and is written last. So it does not
matter if a file system renames a directory file by file, as object stores do. Older versions wrote no manifest, and
deleted what a directory covers only after all of it was in place. Such a directory is complete if it has at least as
many rows as what is left of what it covers: an interrupted one has fewer, since all that it covers is still there.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.archive import Batches, covered, file_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST: Final = "_merged"
"""Beside the files; what begins so is no data to any reader of Parquet."""
DAMAGED: Final = ("CANNOT_READ_FILE_FOOTER", "is not a Parquet file", "ChecksumException")
"""What Spark and Hadoop say of a file that was cut off as it was written."""


def sift(spark: "SparkSession", paths: Mapping[Batches, str]) -> tuple[set[Batches], set[Batches]]:
    """Apply ``sifted`` to the directories of one place, by their paths; those that cover nothing are not looked at."""

    def rows(several: Iterable[Batches]) -> int:
        return count(spark, [paths[each] for each in several])

    return sifted(paths, lambda each: is_whole(spark, paths[each]), rows)


def sifted(
    batches: Collection[Batches], has_manifest: Callable[[Batches], bool], rows: Callable[[Iterable[Batches]], int]
) -> tuple[set[Batches], set[Batches]]:
    """Return the directories of one place that others stand for, and the merged ones that are incomplete.

    ``rows`` says how many rows some of them have, -1 for files that cannot be read.
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
    """Whether ``merged`` has the rows of those beneath; not if any of these cannot be read."""
    found, wanted = rows([merged]), rows(beneath)
    return 0 <= wanted <= found


def count(spark: "SparkSession", directories: list[str]) -> int:
    """Return how many rows there are, -1 if a file is not whole."""
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
    """Return the size (bytes) of each file of data by its name."""
    files, place = file_of(spark, directory)
    found = {str(each.getPath().getName()): int(each.getLen()) for each in files.listStatus(place) if each.isFile()}
    return {name: size for name, size in found.items() if not name.startswith(("_", "."))}


def seal(spark: "SparkSession", directory: str, named: Mapping[str, int]) -> None:
    """Write the manifest, last of all: ``directory`` is complete if it has the files ``named``, of these sizes."""
    files, place = file_of(spark, f"{directory}/{MANIFEST}")
    stream = files.create(place, True)
    stream.write(json.dumps({"files": dict(named)}).encode())
    stream.close()


def is_whole(spark: "SparkSession", directory: str) -> bool:
    """Whether there is a manifest, and every file that it names."""
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
