"""Claims: what is being published in one partition of an archive, so that its rows count once meanwhile.

To publish micro-batches, a pipeline writes their rows aside. Then it writes a claim, which names the files, unless
there is one. Any process that finds the claim can finish: it moves the files below ``events``, where they stay for
good, deletes the recent directories and what is left aside, and last the claim. The recent directories hold the rows
until all files are in place, then the published one does. A file system may move a directory file by file, as object
stores do.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

from penstock.spark.archive import PARTITIONS, RECENT, Batches, file_of, listed, place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLAIM: Final = "_publishing"
"""Name of the file; readers of Parquet ignore names with an underscore."""
CUT_OFF_SECONDS: Final = 60.0
"""Age of a claim from which it is no longer being written."""
PASSING: Final = "FileNotFoundException", "ChecksumException"
"""Errors of Hadoop for a file that has gone, or is cut off."""


@dataclass(frozen=True)
class Claim:
    """Micro-batches of a partition that are being published."""

    batches: Batches
    covered: Sequence[str]
    """The names of the recent directories that have the same rows."""
    aside: str
    """The name of the directory in which the files were written."""
    files: Mapping[str, int]
    """The size of each (bytes)."""

    @classmethod
    def of(cls, text: str | bytes) -> "Self | None":
        """Parse the content of a claim; None if it is cut off: then nothing has been published yet."""
        try:
            found = json.loads(text)
            batches = Batches.of(found["batches"])
            return cls(batches, found["covered"], found["aside"], found["files"]) if batches else None
        except (ValueError, KeyError, TypeError):
            return None

    def __str__(self) -> str:
        return json.dumps(asdict(self) | {"batches": self.batches.name})

    def is_whole(self, sizes: Mapping[str, int]) -> bool:
        """Return whether all files are in a directory with files of these ``sizes``."""
        return self.files.items() <= sizes.items()


def claims_of(spark: "SparkSession", directory: str, base: str) -> Iterator[tuple[str, Claim | None]]:
    """Yield each partition with a claim, as ``date=.../namespace=...`` (or ``hour=...``), and the claim.

    None stands for one that was cut off some time ago. One that is being written is left out.
    """
    columns = PARTITIONS[base]
    root = f"{directory}/{RECENT[base]}"
    for values in listed(spark, root, *columns, name=CLAIM):
        place = place_of(columns, values)
        files, path = file_of(spark, f"{root}/{place}/{CLAIM}")
        claim = Claim.of(read_text(spark, f"{root}/{place}/{CLAIM}"))
        if claim or (
            files.exists(path)
            and time.time() - files.getFileStatus(path).getModificationTime() / 1000 > CUT_OFF_SECONDS
        ):
            yield place, claim


def is_published(spark: "SparkSession", directory: str, claim: Claim, seen: Iterable[str]) -> bool:
    """Return whether all files of ``claim`` are whole in ``directory``, and were among the URLs ``seen`` before."""
    end = "/".join(directory.split("/")[-3:])
    names = {unquote(url).rpartition("/")[2] for url in seen if unquote(url).rpartition("/")[0].endswith(end)}
    return claim.files.keys() <= names and claim.is_whole(files_in(spark, directory))


def files_in(spark: "SparkSession", directory: str) -> dict[str, int]:
    """Return the size (bytes) of each data file by its name; {} if there is no such directory."""
    files, place = file_of(spark, directory)
    if not files.exists(place):
        return {}
    found = {str(each.getPath().getName()): int(each.getLen()) for each in files.listStatus(place) if each.isFile()}
    return {name: size for name, size in found.items() if not name.startswith(("_", "."))}


def read_text(spark: "SparkSession", path: str) -> str:
    """Return what a file holds; nothing if it is gone, or damaged."""
    from py4j.protocol import Py4JJavaError

    java: Any = spark._jvm
    files, place = file_of(spark, path)
    try:
        stream = files.open(place)
        try:
            return str(java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
    except Py4JJavaError as error:
        if any(word in str(error) for word in PASSING):
            return ""
        raise


def write_claim(spark: "SparkSession", path: str, claim: Claim) -> bool:
    """Write ``claim`` unless there is one; return whether it was written."""
    from py4j.protocol import Py4JJavaError

    files, place = file_of(spark, path)
    try:
        stream = files.create(place, False)
    except Py4JJavaError as error:
        if "FileAlreadyExistsException" in str(error):
            return False
        raise
    stream.write(str(claim).encode())
    stream.close()
    return True
