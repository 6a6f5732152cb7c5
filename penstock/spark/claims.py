"""Claims: which micro-batches of an archive are being published, so that their rows count once meanwhile.

To publish micro-batches, a pipeline writes their rows aside. Then it writes a claim, which names the files, unless
there is one. Any process that finds the claim can finish: it moves the files below ``events``, where they stay for
good, writes the claim once more to say so, deletes the recent directories, and last the first of the claims. The recent
directories hold the rows until all files are in place, then the published ones do. A file system may move a directory
file by file, as object stores do.

What says that all files are in place lies beside them from the beginning and is renamed, where that replaces a file. So
a process that was stopped meanwhile, whose claim another has finished, cannot put it in the place of a later one.

The other claim stays. A process that was stopped can write a micro-batch once more after its successor has published
it; from this claim readers and merges know that its rows are published.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES: Final = re.compile(r"(?P<query>.+)-(?P<first>\d{9,})(\.\.(?P<last>\d{9,}))?")
PUBLISHING: Final = "_publishing"
"""Name of the claim; readers of Parquet ignore names with an underscore."""
PUBLISHED: Final = "_published"
"""Name of the last claim whose files are all in place."""
CUT_OFF_SECONDS: Final = 60.0
"""Age of a claim from which it is no longer being written."""
PASSING: Final = "FileNotFoundException", "ChecksumException"
"""Errors of Hadoop for a file that has gone, or is cut off."""


@dataclass(frozen=True, order=True)
class Batches:
    """The micro-batches in one directory: a single one, or a merged range from ``first`` to ``last``."""

    query: str
    """The first characters of the id of the query."""
    first: int
    last: int

    @classmethod
    def of(cls, name: str) -> "Self | None":
        """Parse the ``name`` of a directory; return None if a pipeline has not named it."""
        if not (found := BATCHES.fullmatch(name)):
            return None
        first = int(found["first"])
        return cls(found["query"], first, int(found["last"] or first))

    @property
    def name(self) -> str:
        return f"{self.query}-{self.first:09d}" + f"..{self.last:09d}" * (self.last > self.first)


@dataclass(frozen=True)
class Claim:
    """Micro-batches that are being published."""

    batches: Batches
    covered: Sequence[str]
    """The names of the recent directories that have the same rows."""
    aside: str
    """The name of the directory in which the files were written."""
    files: Mapping[str, int]
    """The size of each (bytes), by its path below ``aside``."""

    @classmethod
    def of(cls, text: str | bytes) -> "Self | None":
        """Parse the content of a claim; None if it is cut off: then nothing has been published yet."""
        try:
            found = json.loads(text)
            batches = Batches.of(found["batches"])
            return cls(batches, found["covered"], found["aside"], found["files"]) if batches else None
        except (ValueError, KeyError, TypeError):
            return None

    def has_published(self, name: str) -> bool:
        """Return whether this claim, or an earlier one of the same query, has published micro-batch ``name``."""
        batches = Batches.of(name)
        return bool(batches and batches.query == self.batches.query and batches.last <= self.batches.last)

    def __str__(self) -> str:
        return json.dumps(asdict(self) | {"batches": self.batches.name})


def read_claim(spark: "SparkSession", path: str) -> Claim | None:
    """Return the claim in a file; None if there is none, or it is damaged."""
    from py4j.protocol import Py4JJavaError

    java: Any = spark._jvm
    files, place = file_of(spark, path)
    try:
        stream = files.open(place)
        try:
            return Claim.of(str(java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")))
        finally:
            stream.close()
    except Py4JJavaError as error:
        if any(word in str(error) for word in PASSING):
            return None
        raise


def is_cut_off(spark: "SparkSession", path: str) -> bool:
    """Return whether there is a file that is no claim, and that nobody is writing."""
    files, place = file_of(spark, path)
    if read_claim(spark, path) or not exists(spark, path):
        return False
    return bool(time.time() - files.getFileStatus(place).getModificationTime() / 1000 > CUT_OFF_SECONDS)


def write_claim(spark: "SparkSession", path: str, claim: Claim, *, again: bool = False) -> bool:
    """Write ``claim`` unless there is one, or ``again``; return whether it was written."""
    from py4j.protocol import Py4JJavaError

    files, place = file_of(spark, path)
    try:
        stream = files.create(place, again)
    except Py4JJavaError as error:
        if "FileAlreadyExistsException" in str(error):
            return False
        raise
    stream.write(str(claim).encode())
    stream.close()
    return True


def exists(spark: "SparkSession", path: str) -> bool:
    """Return whether there is a file or a directory."""
    files, place = file_of(spark, path)
    return bool(files.exists(place))


def file_of(spark: "SparkSession", path: str) -> tuple[Any, Any]:
    """Return Java's objects for the file system of ``path`` and for the path."""
    file = _path(spark._jvm)(path)
    return file.getFileSystem(spark._jsc.hadoopConfiguration()), file


@cache
def _path(java: Any) -> Any:
    """Return the class of paths: to find it takes five round trips."""
    return java.org.apache.hadoop.fs.Path
