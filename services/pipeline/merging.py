"""Merging of small files: the directories of many micro-batches in one partition become one directory.

The rows are written aside and counted. Then the directory is renamed, gets its manifest, and the covered directories
are deleted. A crash in between leaves both, and readers take each row once. The next merge deletes directories that a
complete one covers, and incomplete ones.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from penstock.errors import PenstockError
from penstock.spark.archive import EVENTS, MINUTES, WRITING, Batches, file_of, listed
from penstock.spark.merged import files_in, stale_directories, write_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_DIRECTORIES: Final = 8
"""Minimum number of directories of a partition that are merged."""
FILE_ROWS: Final = 4_000_000
"""Maximum number of rows of a file: about 100 MB."""
ASIDE: Final = "_merging"
LASTS: Final = {EVENTS: (("date", "namespace"), timedelta(days=1)), MINUTES: (("hour",), timedelta(hours=1))}
"""Partition columns, and the length of a partition in time from the moment in its first column."""


class Merger:
    """Merges files of one archive. ``lateness``: seconds in which rows may still come after the end of a partition."""

    def __init__(self, spark: "SparkSession", directory: str, lateness: int) -> None:
        self._spark, self._directory, self._lateness = spark, directory, timedelta(seconds=lateness)
        self._aside = f"{directory}/{ASIDE}/{uuid4().hex}"
        """Unique, since another process may believe to be the active one, too."""
        self._counted = -1
        """The last counted micro-batch at the time of the last merge."""
        self._delete(f"{directory}/{ASIDE}")

    def merge(self, query: str, counted: int) -> int:
        """Merge partitions with many directories. Return by how many directories there are fewer.

        ``counted`` is the last counted micro-batch of ``query``: it and later ones may be written again.
        """
        gone = 0
        before, self._counted = self._counted, counted
        for base, (columns, lasts) in LASTS.items():
            for place, batches in self._places(base, columns):
                start = datetime.fromisoformat(place.partition("/")[0].partition("=")[2]).replace(tzinfo=UTC)
                over = start + lasts + self._lateness <= datetime.now(UTC)
                path = f"{self._directory}/{base}/{place}"
                # Left by an interrupted merge: covered directories, and incomplete ones.
                twice, broken = stale_directories(self._spark, {each: f"{path}/batch={each.name}" for each in batches})
                self._deleted(path, broken)
                gone += self._deleted(path, twice - broken)
                settled = sorted(
                    each for each in batches - twice - broken if each.query != query or each.last < counted
                )
                for _, group in groupby(settled, attrgetter("query")):
                    several = list(group)
                    quiet = all(each.query != query or each.last < before for each in several)
                    if chosen := to_merge(several, everything=over and quiet):
                        self._join(path, chosen)
                        gone += self._deleted(path, chosen) - 1
        return gone

    def _places(self, base: str, columns: tuple[str, ...]) -> Iterator[tuple[str, set[Batches]]]:
        """Yield each partition by its path below ``base``, with its directories."""
        found: dict[str, set[Batches]] = defaultdict(set)
        for *values, name in listed(self._spark, f"{self._directory}/{base}", *columns, "batch"):
            if batches := Batches.of(name):
                found["/".join(f"{column}={value}" for column, value in zip(columns, values, strict=True))].add(batches)
        yield from found.items()

    def _join(self, path: str, several: list[Batches]) -> None:
        """Copy the rows of ``several`` to one directory."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        target = f"{path}/batch={Batches(several[0].query, several[0].first, several[-1].last).name}"
        seen = Observation()
        reader = self._spark.read.option("mergeSchema", "true")  # files of older versions have other columns
        rows = reader.parquet(*(f"{path}/batch={each.name}" for each in several))
        one = rows.observe(seen, F.count(F.lit(1)).alias("rows")).coalesce(1)
        one.write.mode("overwrite").options(**WRITING, maxRecordsPerFile=FILE_ROWS).parquet(self._aside)
        written = self._spark.read.parquet(self._aside).count()
        if written != seen.get["rows"]:
            raise PenstockError(f"{target}: of {seen.get['rows']} rows {written} were written; nothing is deleted")
        made = files_in(self._spark, self._aside)
        files, place = file_of(self._spark, target)
        if files.exists(place):
            raise PenstockError(f"{target} is there already; nothing is deleted")
        self._rename(self._aside, target)
        if (there := files_in(self._spark, target)) != made:
            raise PenstockError(f"{target} has {len(there)} of {len(made)} files; nothing is deleted")
        write_manifest(self._spark, target, made)

    def _rename(self, source: str, target: str) -> None:
        """Rename ``source``. This is not atomic everywhere: an object store copies file by file."""
        files, place = file_of(self._spark, source)
        if not files.rename(place, file_of(self._spark, target)[1]):
            raise PenstockError(f"{source} cannot be renamed to {target}; nothing is deleted")

    def _deleted(self, path: str, batches: Collection[Batches]) -> int:
        """Delete the directories and return their number."""
        for each in batches:
            self._delete(f"{path}/batch={each.name}")
        return len(batches)

    def _delete(self, path: str) -> None:
        files, place = file_of(self._spark, path)
        files.delete(place, True)


def to_merge(several: list[Batches], *, everything: bool) -> list[Batches]:
    """Return which of ``several``, in order, become one directory; [] if they are too few.

    The merged directory covers a range, so directories between the first and the last small one are merged, too.
    """
    if everything and len(several) >= MIN_DIRECTORIES:
        return several
    small = [each for each in several if each.first == each.last]
    if len(small) < MIN_DIRECTORIES:
        return []
    return [each for each in several if small[0].first <= each.first and each.last <= small[-1].last]
