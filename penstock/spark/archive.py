"""The archive that the pipeline writes: where what lies in it, and how it is read.

Its rows lie in a directory for each micro-batch of a day and namespace, or of an hour for parts of roll-ups. Several
of them are merged into one, which bears their numbers; those that it covers are deleted after that. Whoever reads
meanwhile leaves out what is covered by a complete one, and an incomplete one itself, and so has each row once.
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
"""Roll-ups of a minute, a part for every micro-batch: ``hour=2026-11-21T18/batch=...``."""
ROLLUPS: Final = "rollups"
"""Of windows that are over: ``size=minute|hour|day/date=2026-11-21/hour=18``."""
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
    """What one directory holds: a micro-batch of a query, or those from the first to the last that were merged."""

    query: str
    """As much of its id as tells it from others."""
    first: int
    last: int

    @classmethod
    def of(cls, name: str) -> "Self | None":
        """Those that a directory of that name holds; None where a pipeline has not named it."""
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
    """Those of one place whose rows are in another one of it, too."""
    there = set(batches)
    merged = [each for each in there if each.last > each.first]
    return {each for each in there if any(other.covers(each) for other in merged)}


def events(
    spark: "SparkSession",
    directory: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    namespaces: Sequence[str] = (),
) -> "DataFrame":
    """The archived events from ``since`` to before ``until``, of ``namespaces`` or of all; their columns are ``DDL``.

    ``timeout`` is what the namespace allowed a message when the event was archived (s), null where it said nothing;
    ``message`` the payload of a ``registered`` event where the operator has them archived; ``extra`` what an event says
    in fields that are none of ours (JSON). A column that an archive of an older version does not have is null.

    Raises ``NoArchive`` where there is none.
    """
    from pyspark.sql import functions as F

    rows = once(_parquet(spark.read.schema(DDL), f"{directory}/{EVENTS}"), "date", "namespace")
    if since:
        rows = rows.where((F.col("date") >= F.lit(since.date())) & (F.col("at") >= F.lit(since)))
    if until:
        rows = rows.where((F.col("date") <= F.lit(until.date())) & (F.col("at") < F.lit(until)))
    if namespaces:
        rows = rows.where(F.col("namespace").isin(list(namespaces)))
    return rows


def rolled_up(spark: "SparkSession", directory: str, size: str) -> "DataFrame":
    """The roll-ups of all windows of ``size`` (minute, hour, day), those that are not over as far as they are.

    Their columns are those of ``penstock.spark.rollups.windows``. Raises ``NoArchive`` where there is none.
    """
    from penstock.spark.rollups import windows

    return windows(once(_parquet(spark.read, f"{directory}/{MINUTES}"), "hour"), size)


def once(rows: "DataFrame", *columns: str) -> "DataFrame":
    """Return ``rows`` of directories by ``columns`` and micro-batch, without those that ``sift`` finds."""
    from pyspark.sql import functions as F

    from penstock.spark.merged import sift

    there: dict[tuple[str, ...], dict[Batches, str]] = defaultdict(dict)
    for file in rows.inputFiles():
        # An address, and in it names as Hive would write them.
        directory = unquote(file.rpartition("/")[0])
        words = [unquote(word.partition("=")[2]) for word in directory.split("/")[-len(columns) - 1 :]]
        if batches := Batches.of(words.pop()):
            there[tuple(words)][batches] = directory
    unwanted = {place: set().union(*sift(rows.sparkSession, several)) for place, several in there.items()}
    twice = ["/".join((*place, each.name)) for place, several in unwanted.items() for each in several]
    return rows.where(~F.concat_ws("/", *columns, "batch").isin(twice)) if twice else rows


def _parquet(reader: "DataFrameReader", place: str) -> "DataFrame":
    from pyspark.errors import AnalysisException

    try:
        return reader.parquet(place)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise NoArchive(f"{place}: there is no archive; expected the directory that a pipeline writes") from None


def overwrite(rows: "DataFrame", directory: str, *columns: str) -> None:
    """Write ``rows`` as Parquet, partitioned by ``columns``, in place of what those partitions had; others stay."""
    rows.write.mode("overwrite").options(**WRITING).partitionBy(*columns).parquet(directory)


def listed(spark: "SparkSession", directory: str, *columns: str) -> list[tuple[str, ...]]:
    """The partitions by ``columns`` that there are, each by its values."""
    files, pattern = file_of(spark, "/".join([directory, *(f"{column}=*" for column in columns)]))
    found = files.globStatus(pattern)
    paths = [str(each.getPath()).split("/")[-len(columns) :] for each in found or ()]
    return [tuple(word.partition("=")[2] for word in path) for path in paths]


def file_of(spark: "SparkSession", path: str) -> tuple[Any, Any]:
    """The file system that ``path`` is on, and the path, as Java knows them."""
    java: Any = spark._jvm
    file = java.org.apache.hadoop.fs.Path(path)
    return file.getFileSystem(spark._jsc.hadoopConfiguration()), file
