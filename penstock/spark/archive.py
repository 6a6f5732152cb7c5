"""The archive that the pipeline writes: where what lies in it, and how it is read."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

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
DDL: Final = (
    "entry string, place int, number long, event string, id string, xid string, at timestamp, queue string, "
    "service string, attempt int, seconds double, timeout double, message binary, date date, namespace string, "
    "batch string"
)


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
    ``message`` the payload of a ``registered`` event where the operator has them archived.

    Raises ``NoArchive`` where there is none.
    """
    from pyspark.sql import functions as F

    rows = _parquet(spark.read.schema(DDL), f"{directory}/{EVENTS}")
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

    return windows(_parquet(spark.read, f"{directory}/{MINUTES}"), size)


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
    java: Any = spark._jvm
    pattern = java.org.apache.hadoop.fs.Path("/".join([directory, *(f"{column}=*" for column in columns)]))
    found = pattern.getFileSystem(spark._jsc.hadoopConfiguration()).globStatus(pattern)
    paths = [str(each.getPath()).split("/")[-len(columns) :] for each in found or ()]
    return [tuple(word.partition("=")[2] for word in path) for path in paths]
