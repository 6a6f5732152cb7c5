"""Layout and reader of the archive that the pipeline writes.

Each micro-batch has a directory by day and namespace, or by hour for parts of roll-ups. Several directories are merged
into one, whose name has their numbers; then the covered ones are deleted. A reader ignores directories that a complete
one covers, and incomplete ones, so it gets each row once at any moment.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

from penstock.errors import NoArchive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

EVENTS: Final = "events"
MALFORMED: Final = "_malformed"
MINUTES: Final = "minutes"
"""Roll-ups by minute, one part for every micro-batch: ``hour=2026-11-21T18/batch=...``."""
ROLLUPS: Final = "rollups"
"""Rows of closed windows: ``size=minute|hour|day/date=2026-11-21/hour=18``."""
WRITING: Final = {
    "partitionOverwriteMode": "dynamic",
    "parquet.compression.codec.zstd.level": "1",  # no larger than with Spark's 3, and a fifth faster
}
BATCHES: Final = re.compile(r"(?P<query>.+)-(?P<first>\d{9,})(\.\.(?P<last>\d{9,}))?")
DDL: Final = (
    "entry string, place int, number long, event string, id string, xid string, at timestamp, queue string, "
    "service string, attempt int, seconds double, timeout double, message binary, extra string, date date, "
    "namespace string, batch string"
)


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

    def covers(self, other: "Batches") -> bool:
        return self.query == other.query and self.first <= other.first and other.last <= self.last and self != other


def covered(batches: Iterable[Batches]) -> set[Batches]:
    """Return those whose rows another one in ``batches`` has, too; all are of one partition."""
    present = set(batches)
    merged = [each for each in present if each.last > each.first]
    return {each for each in present if any(other.covers(each) for other in merged)}


def events(
    spark: "SparkSession",
    directory: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    namespaces: Sequence[str] = (),
) -> "DataFrame":
    """Read the archived events of ``namespaces``, or of all, from ``since`` to before ``until``.

    The columns are ``DDL``. ``timeout`` is the ``messageTimeout`` of the namespace when the event was archived (s), or
    null. ``message`` is the payload of a ``registered`` event if payloads are archived. ``extra`` has unknown fields
    (JSON). A column that an archive of an older version lacks is null. Raise ``NoArchive`` if none exists.
    """
    from pyspark.sql import functions as F

    rows = deduplicated(_parquet(spark.read.schema(DDL), f"{directory}/{EVENTS}"), "date", "namespace")
    if since:
        rows = rows.where((F.col("date") >= F.lit(since.date())) & (F.col("at") >= F.lit(since)))
    if until:
        rows = rows.where((F.col("date") <= F.lit(until.date())) & (F.col("at") < F.lit(until)))
    if namespaces:
        rows = rows.where(F.col("namespace").isin(list(namespaces)))
    return rows


def rolled_up(spark: "SparkSession", directory: str, size: str) -> "DataFrame":
    """Read the roll-ups of all windows of ``size`` (minute, hour, day), including the current one so far.

    The columns are those of ``penstock.spark.rollups.windows``. Raise ``NoArchive`` if there is no archive.
    """
    from penstock.spark.rollups import windows

    return windows(deduplicated(_parquet(spark.read, f"{directory}/{MINUTES}"), "hour"), size)


def deduplicated(rows: "DataFrame", *columns: str) -> "DataFrame":
    """Return ``rows``, partitioned by ``columns`` and micro-batch, without those in stale directories."""
    from pyspark.sql import functions as F

    from penstock.spark.merged import stale_directories

    found: dict[tuple[str, ...], dict[Batches, str]] = defaultdict(dict)
    for file in rows.inputFiles():
        # A URL with names in Hive's escaping: unquote twice.
        directory = unquote(file.rpartition("/")[0])
        words = [unquote(word.partition("=")[2]) for word in directory.split("/")[-len(columns) - 1 :]]
        if batches := Batches.of(words.pop()):
            found[tuple(words)][batches] = directory
    stale = {place: set().union(*stale_directories(rows.sparkSession, several)) for place, several in found.items()}
    names = ["/".join((*place, each.name)) for place, several in stale.items() for each in several]
    return rows.where(~F.concat_ws("/", *columns, "batch").isin(names)) if names else rows


def _parquet(reader: "DataFrameReader", place: str) -> "DataFrame":
    from pyspark.errors import AnalysisException

    try:
        return reader.parquet(place)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise NoArchive(f"{place}: there is no archive; expected the directory that a pipeline writes") from None


def overwrite(rows: "DataFrame", directory: str, *columns: str) -> None:
    """Write ``rows`` as Parquet, partitioned by ``columns``; replace the partitions that occur and keep the others."""
    rows.write.mode("overwrite").options(**WRITING).partitionBy(*columns).parquet(directory)


def listed(spark: "SparkSession", directory: str, *columns: str) -> list[tuple[str, ...]]:
    """Return the values of each partition by ``columns`` that exists."""
    files, pattern = file_of(spark, "/".join([directory, *(f"{column}=*" for column in columns)]))
    found = files.globStatus(pattern)
    paths = [str(each.getPath()).split("/")[-len(columns) :] for each in found or ()]
    return [tuple(word.partition("=")[2] for word in path) for path in paths]


def file_of(spark: "SparkSession", path: str) -> tuple[Any, Any]:
    """Return Java's objects for the file system of ``path`` and for the path."""
    java: Any = spark._jvm
    file = java.org.apache.hadoop.fs.Path(path)
    return file.getFileSystem(spark._jsc.hadoopConfiguration()), file
