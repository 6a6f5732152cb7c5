"""Layout and reader of the archive that the pipeline writes.

Each micro-batch has a directory below ``recent``. Later the rows of several are published: they are divided by day and
namespace (parts of roll-ups by hour) into directories below ``events``, whose names have the numbers of the
micro-batches. Nothing there changes or goes again, so any reader of ``events`` sees each row once. A reader of ours
reads both. While rows are published, a claim says which: see ``penstock.spark.claims``.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from penstock.base.errors import NoArchive, PenstockError, Unsuitable
from penstock.spark.claims import PUBLISHED, PUBLISHING, exists, file_of, read_claim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS: Final = "events"
MALFORMED: Final = "_malformed"
MINUTES: Final = "minutes"
"""Roll-ups by minute, one part for every micro-batch; published as ``hour=2026-11-21T18/batch=...``."""
RECENT: Final = {EVENTS: "recent", MINUTES: "recent-minutes"}
"""Where what is not published yet lies, in a directory for each micro-batch."""
PARTITIONS: Final = {EVENTS: ("date", "namespace"), MINUTES: ("hour",)}
"""Columns of the directories above those of published micro-batches."""
ROLLUPS: Final = "rollups"
"""Rows of closed windows: ``size=minute|hour|day/date=2026-11-21/hour=18``."""
ZSTD_LEVEL: Final = 1
"""No larger than with Spark's 3, and a fifth faster."""
WRITING: Final = {
    "partitionOverwriteMode": "dynamic",
    "parquet.compression.codec.zstd.level": str(ZSTD_LEVEL),
    # With 100 rows, and after small ones 10,000, which is usual, Java needs gigabytes for messages of 10 MB.
    "parquet.page.size.row.check.min": "5",
    "parquet.page.size.row.check.max": "5",
    "parquet.block.size.row.check.min": "5",
    "parquet.block.size.row.check.max": "5",
}
WRITER: Final = {
    "compression": "zstd",
    "compression_level": ZSTD_LEVEL,
    "write_page_checksum": True,
    "store_schema": False,
    # Of columns with few values. With those of all, files are a tenth larger, and take a third longer to write.
    "use_dictionary": ["date", "namespace", "event", "queue", "service", "attempt", "timeout"],
}
"""Options of pyarrow's writer."""
ASIDE: Final = "_merging"
"""Where Java writes files that are moved into place afterwards."""
BEGUN: Final = "_writing"
"""Where files are written, below an archive that is mounted; what a killed pipeline has left there is deleted."""
TAKEN_OVER: Final = (
    "another pipeline has taken over, as this one was stopped for longer than leaseExpire, or both write here"
)
DDL: Final = (
    "entry string, place int, number long, event string, id string, xid string, at timestamp, queue string, "
    "service string, attempt int, seconds double, timeout double, message binary, extra string, date date, "
    "namespace string, batch string"
)
MINUTES_DDL: Final = (
    "start timestamp, namespace string, queue string, event string, count long, timed long, micros long, max double, "
    "histogram array<long>, buckets map<int, long>, attempts long, timeouts long, dead long, hour string, batch string"
)
SCHEMAS: Final = {EVENTS: DDL, MINUTES: MINUTES_DDL}


@dataclass(frozen=True)
class Mounted:
    """An archive whose file system is mounted here and where Spark's tasks run."""

    archive: Path
    aside: Path
    """Where files are written for this process alone. The next one takes it away, at once and with all that is in it.

    Then this one can move nothing into place any more.
    """

    @classmethod
    def at(cls, archive: Path) -> "Self":
        return cls(archive, archive / BEGUN / uuid4().hex)

    def begin(self) -> None:
        """Make the directory. Do this once only: it is not there any more if another process has taken over."""
        try:
            self.aside.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"mkdir of {self.aside} failed: {error}") from error  # as Hadoop says it

    def staged(self, root: str) -> Path:
        """Return a directory for the files of a micro-batch below ``root``."""
        staged = self.aside / root
        staged.mkdir(exist_ok=True)
        return staged

    def replace(self, path: str, staged: Path) -> None:
        """Let the directory ``staged`` take the place of the one at ``path`` in the archive.

        Raise ``FileNotFoundError`` and replace nothing if another process has taken over.
        """
        target, former = self.archive / path, self.aside / "former"
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.stat()
        if target.exists():
            target.rename(former)
        staged.rename(target)
        shutil.rmtree(former, ignore_errors=True)

    def discard(self, directory: Path) -> None:
        """Take ``directory`` away. Raise ``FileNotFoundError`` and keep it if another process has taken over."""
        directory.rename(self.aside / uuid4().hex)

    def clear(self) -> None:
        """Delete what a micro-batch has left."""
        for each in self.aside.iterdir():
            if each.name != ROLLUPS:
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Raise ``Unsuitable`` for an error whose reason is that another process has taken over."""
        try:
            yield
        except (FileNotFoundError, Unsuitable) as error:
            if not self.aside.exists():
                raise Unsuitable(f"{self.archive}: {TAKEN_OVER}") from error
            raise


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

    rows = stored(spark, directory, EVENTS)
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

    return windows(stored(spark, directory, MINUTES), size)


def stored(spark: "SparkSession", directory: str, base: str, hours: Sequence[str] = ()) -> "DataFrame":
    """Read the rows of ``EVENTS`` or ``MINUTES``, or only those of some ``hours``, each once.

    If files are published while they are read, they are not found: call this again. Raise ``NoArchive``.
    """
    from functools import reduce

    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    recent, published = f"{directory}/{RECENT[base]}", f"{directory}/{base}"
    hourly = [f"{published}/hour={hour}" for hour in hours]
    found: dict[str, DataFrame] = {}
    # In this order: rows go from the first to the second, and a claim comes before its rows and goes after them.
    if exists(spark, recent):
        rows = spark.read.schema(SCHEMAS[base]).parquet(recent)
        found[recent] = rows.where(F.col("hour").isin(*hours)) if hours else rows
    whole = read_claim(spark, f"{recent}/{PUBLISHED}")
    if whole and recent in found:
        again = [name for (name,) in listed(spark, recent, "batch") if whole.has_published(name)]
        found[recent] = found[recent].where(~F.col("batch").isin([*whole.covered, *again]))
    if paths := [path for path in hourly or [published] if exists(spark, path)]:
        found[published] = spark.read.schema(SCHEMAS[base]).option("basePath", published).parquet(*paths)
    if not found:
        raise NoArchive(f"{published}: there is no archive; expected the directory that a pipeline writes")
    claim = read_claim(spark, f"{recent}/{PUBLISHING}")
    if claim and not (whole and whole.has_published(claim.batches.name)) and published in found:
        found[published] = found[published].where(F.col("batch") != claim.batches.name)
    return reduce(DataFrame.unionByName, found.values())


def overwrite(rows: "DataFrame", directory: str, *columns: str) -> None:
    """Write ``rows`` as Parquet, partitioned by ``columns``; replace the partitions that occur and keep the others."""
    rows.write.mode("overwrite").options(**WRITING).partitionBy(*columns).parquet(directory)


def listed(spark: "SparkSession", directory: str, *columns: str, name: str = "") -> list[tuple[str, ...]]:
    """Return the values of each partition by ``columns`` that exists, or that has something called ``name``."""
    words = [*(f"{column}=*" for column in columns), *([name] if name else [])]
    files, pattern = file_of(spark, "/".join([directory, *words]))
    found = files.globStatus(pattern)
    paths = [str(each.getPath()).split("/")[-len(words) :] for each in found or ()]
    return [tuple(word.partition("=")[2] for word in path[: len(columns)]) for path in paths]


def move(spark: "SparkSession", source: str, target: str) -> None:
    """Rename a directory or a file. This is not atomic everywhere: an object store copies file by file."""
    files, place = file_of(spark, source)
    to = file_of(spark, target)[1]
    if not files.mkdirs(to.getParent()):
        parent = target.rpartition("/")[0]
        raise PenstockError(f"{parent} cannot be written: make it writable for this user, or make room")
    if not files.rename(place, to):
        raise PenstockError(f"{source} cannot be renamed to {target}; nothing is deleted")


def delete(spark: "SparkSession", path: str) -> None:
    """Delete a file, or a directory with all that it holds, if it exists."""
    files, place = file_of(spark, path)
    files.delete(place, True)


def delete_published(
    spark: "SparkSession", directory: str, base: str, name: str, mounted: "Mounted | None" = None
) -> None:
    """Delete what version 0.2 has written of the micro-batch ``name`` where rows are published now.

    With ``mounted``, raise ``FileNotFoundError`` and delete nothing if another process has taken over.
    """
    columns = PARTITIONS[base]
    for place in listed(spark, f"{directory}/{base}", *columns, name=f"batch={name}"):
        values = "/".join(map("=".join, zip(columns, place, strict=True)))
        if mounted:
            mounted.discard(mounted.archive / base / values / f"batch={name}")
        else:
            delete(spark, f"{directory}/{base}/{values}/batch={name}")


def mounted(spark: "SparkSession", directory: str) -> "Mounted | None":
    """Return ``directory`` as this process may write it; None for HDFS and object stores."""
    files, place = file_of(spark, directory)
    uri = files.makeQualified(place).toUri()
    return Mounted.at(Path(str(uri.getPath()))) if uri.getScheme() == "file" else None


def without_scheme(directory: str) -> str:
    """Return the path of a URL of a mounted file system, ``file:/x`` or ``file:///x``; others as they are."""
    return re.sub(r"^file:(//)?(?=/)", "", directory)
