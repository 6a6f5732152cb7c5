"""Small files made large: what many micro-batches have left in one place of the archive becomes one directory.

The rows are written aside and counted, then the directory gets its place, then its manifest, then those that it covers
are deleted. A crash in between leaves both; readers take each row once. The next merge deletes what is covered by a
complete directory, and an incomplete one.
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
from penstock.spark.merged import files_in, seal, sift

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW: Final = 8
"""So many directories are worth a merge: fewer of small ones, and fewer of merged ones, are left in each place."""
ROWS: Final = 4_000_000
"""Most of one file: about 100 MB."""
ASIDE: Final = "_merging"
LASTS: Final = {EVENTS: (("date", "namespace"), timedelta(days=1)), MINUTES: (("hour",), timedelta(hours=1))}
"""The columns of a place, and how long its rows go on coming: from the moment that the first of them tells."""


class Merger:
    """That of one archive. ``lateness``: seconds after which nothing more is expected in a place."""

    def __init__(self, spark: "SparkSession", directory: str, lateness: int) -> None:
        self._spark, self._directory, self._lateness = spark, directory, timedelta(seconds=lateness)
        self._aside = f"{directory}/{ASIDE}/{uuid4().hex}"
        """No other process writes there, though it may take itself for the active one."""
        self._counted = -1
        """The micro-batch that was counted last at the last merge."""
        self._delete(f"{directory}/{ASIDE}")

    def merge(self, query: str, counted: int) -> int:
        """Merge what is worth it; how many directories are gone.

        ``counted`` is the micro-batch of ``query`` that was counted last: it and what follows may be written again.
        """
        gone = 0
        before, self._counted = self._counted, counted
        for base, (columns, lasts) in LASTS.items():
            for place, batches in self._places(base, columns):
                start = datetime.fromisoformat(place.partition("/")[0].partition("=")[2]).replace(tzinfo=UTC)
                over = start + lasts + self._lateness <= datetime.now(UTC)
                path = f"{self._directory}/{base}/{place}"
                # From a merge that was interrupted: what stands twice, and what has no manifest.
                twice, broken = sift(self._spark, {each: f"{path}/batch={each.name}" for each in batches})
                self._deleted(path, broken)
                gone += self._deleted(path, twice - broken)
                settled = sorted(
                    each for each in batches - twice - broken if each.query != query or each.last < counted
                )
                for _, group in groupby(settled, attrgetter("query")):
                    several = list(group)
                    quiet = all(each.query != query or each.last < before for each in several)
                    if chosen := worth_it(several, everything=over and quiet):
                        self._join(path, chosen)
                        gone += self._deleted(path, chosen) - 1
        return gone

    def _places(self, base: str, columns: tuple[str, ...]) -> Iterator[tuple[str, set[Batches]]]:
        """Each place by its path below ``base``, and what there is in it."""
        found: dict[str, set[Batches]] = defaultdict(set)
        for *values, name in listed(self._spark, f"{self._directory}/{base}", *columns, "batch"):
            if batches := Batches.of(name):
                found["/".join(f"{column}={value}" for column, value in zip(columns, values, strict=True))].add(batches)
        yield from found.items()

    def _join(self, path: str, several: list[Batches]) -> None:
        """Have the rows of ``several`` in one directory as well."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        target = f"{path}/batch={Batches(several[0].query, several[0].first, several[-1].last).name}"
        seen = Observation()
        reader = self._spark.read.option("mergeSchema", "true")  # those of an older version have other columns
        rows = reader.parquet(*(f"{path}/batch={each.name}" for each in several))
        one = rows.observe(seen, F.count(F.lit(1)).alias("rows")).coalesce(1)
        one.write.mode("overwrite").options(**WRITING, maxRecordsPerFile=ROWS).parquet(self._aside)
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
        seal(self._spark, target, made)

    def _rename(self, source: str, target: str) -> None:
        """Not in one step everywhere: an object store copies file by file, and may be interrupted."""
        files, place = file_of(self._spark, source)
        if not files.rename(place, file_of(self._spark, target)[1]):
            raise PenstockError(f"{source} cannot be renamed to {target}; nothing is deleted")

    def _deleted(self, path: str, batches: Collection[Batches]) -> int:
        """How many there were."""
        for each in batches:
            self._delete(f"{path}/batch={each.name}")
        return len(batches)

    def _delete(self, path: str) -> None:
        files, place = file_of(self._spark, path)
        files.delete(place, True)


def worth_it(several: list[Batches], *, everything: bool) -> list[Batches]:
    """Which of them, in their order, are to be one; none where they are too few.

    The new one covers all from its first to its last, so what lies between is in it, too.
    """
    if everything and len(several) >= FEW:
        return several
    small = [each for each in several if each.first == each.last]
    if len(small) < FEW:
        return []
    return [each for each in several if small[0].first <= each.first and each.last <= small[-1].last]
