"""Publishing of recent rows: the directories of many micro-batches in one partition become one, which stays for good.

The rows are written aside and counted, then claimed, then moved: see ``penstock.spark.claims``. The next merge finishes
what was interrupted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from penstock.errors import PenstockError
from penstock.spark.archive import (
    EVENTS,
    MINUTES,
    PARTITIONS,
    RECENT,
    SCHEMAS,
    WRITING,
    Batches,
    exists,
    file_of,
    listed,
    place_of,
)
from penstock.spark.claims import CLAIM, Claim, claims_of, files_in, write_claim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_DIRECTORIES: Final = 8
"""Number of directories of a partition that are published at the next merge."""
MAX_MERGES: Final = 4
"""Number of the merge at which fewer are published, too."""
FILE_ROWS: Final = 4_000_000
"""Maximum number of rows of a file: about 100 MB."""
ASIDE: Final = "_merging"
LASTS: Final = {EVENTS: timedelta(days=1), MINUTES: timedelta(hours=1)}
"""The length of a partition in time from the moment in its first column."""
GRACE: Final = timedelta(days=1)


class Merger:
    """Publishes rows of one archive. ``lateness``: seconds in which rows may come after the end of a partition."""

    def __init__(self, spark: "SparkSession", directory: str, lateness: int) -> None:
        self._spark, self._directory, self._lateness = spark, directory, timedelta(seconds=lateness)
        self._merges = Counter[tuple[str, str]]()
        """By partition, how many merges have found rows there and published none."""
        self._finish_all()
        self._delete(f"{directory}/{ASIDE}")

    def merge(self, query: str, counted: int, *, everything: bool = False) -> int:
        """Publish the rows of partitions with many directories, or of ``everything``; return how many directories.

        ``counted`` is the last counted micro-batch of ``query``: it and later ones may be written again.
        """
        self._finish_all()
        published = 0
        for base in RECENT:
            for place, batches in self._places(base):
                settled = sorted(each for each in batches if each.query != query or each.last < counted)
                self._merges[base, place] += bool(settled)
                waited = self._merges[base, place] >= MAX_MERGES or everything or _is_over(base, place, self._lateness)
                if len(settled) < (1 if waited else MIN_DIRECTORIES):
                    continue
                del self._merges[base, place]
                for _, several in groupby(settled, attrgetter("query")):
                    self._publish(base, place, list(several))
                published += len(settled)
            self._delete_empty(base)
        return published

    def _places(self, base: str) -> Iterator[tuple[str, set[Batches]]]:
        """Yield each partition that has recent directories, with those."""
        found: dict[str, set[Batches]] = defaultdict(set)
        columns = PARTITIONS[base]
        for *values, name in listed(self._spark, f"{self._directory}/{RECENT[base]}", *columns, "batch"):
            if batches := Batches.of(name):
                found[place_of(columns, values)].add(batches)
        yield from found.items()

    def _publish(self, base: str, place: str, several: Sequence[Batches]) -> None:
        """Write the rows of ``several`` aside, claim them, and move them."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        recent, name = f"{self._directory}/{RECENT[base]}/{place}", uuid4().hex
        aside = f"{self._directory}/{ASIDE}/{name}"
        seen = Observation()
        rows = self._spark.read.schema(SCHEMAS[base]).parquet(*(f"{recent}/batch={each.name}" for each in several))
        one = rows.drop(*PARTITIONS[base], "batch").observe(seen, F.count(F.lit(1)).alias("rows")).coalesce(1)
        one.write.options(**WRITING, maxRecordsPerFile=FILE_ROWS).parquet(aside)
        written = self._spark.read.parquet(aside).count()
        if written != seen.get["rows"]:
            raise PenstockError(f"{recent}: of {seen.get['rows']} rows {written} were written; nothing is published")
        batches = Batches(several[0].query, several[0].first, several[-1].last)
        claim = Claim(batches, [each.name for each in several], name, files_in(self._spark, aside))
        if not write_claim(self._spark, f"{recent}/{CLAIM}", claim):
            raise PenstockError(f"{recent}: another pipeline publishes these events, too")
        self._finish(base, place, claim)

    def _finish_all(self) -> None:
        """Finish what is claimed."""
        for base in RECENT:
            for place, claim in claims_of(self._spark, self._directory, base):
                self._finish(base, place, claim)

    def _finish(self, base: str, place: str, claim: Claim | None) -> None:
        """Move files into place; then delete the recent directories that have the same rows, and the claim."""
        recent = f"{self._directory}/{RECENT[base]}/{place}"
        if claim:
            target = f"{self._directory}/{base}/{place}/batch={claim.batches.name}"
            aside = f"{self._directory}/{ASIDE}/{claim.aside}"
            begun = exists(self._spark, target)
            if begun or exists(self._spark, aside):  # else another process has deleted it before it was claimed
                self._move_all(aside, target, claim, begun=begun)
                for name in claim.covered:
                    self._delete(f"{recent}/batch={name}")
                self._delete(aside)
        self._delete(f"{recent}/{CLAIM}")

    def _move_all(self, aside: str, target: str, claim: Claim, *, begun: bool) -> None:
        if not begun:
            self._move(aside, target)
        for name, _ in claim.files.items() - files_in(self._spark, target).items():
            self._delete(f"{target}/{name}")  # cut off
            self._move(f"{aside}/{name}", f"{target}/{name}")
        there = files_in(self._spark, target)
        if not claim.is_whole(there):
            raise PenstockError(f"{target} has {len(there)} of {len(claim.files)} files; nothing is deleted")

    def _move(self, source: str, target: str) -> None:
        """Rename a directory or a file. This is not atomic everywhere: an object store copies file by file."""
        files, place = file_of(self._spark, source)
        to = file_of(self._spark, target)[1]
        files.mkdirs(to.getParent())
        if not files.rename(place, to):
            raise PenstockError(f"{source} cannot be renamed to {target}; nothing is deleted")

    def _delete(self, path: str) -> None:
        files, place = file_of(self._spark, path)
        files.delete(place, True)

    def _delete_empty(self, base: str) -> None:
        """Delete the directories of days (or hours) that were over long ago, if nothing is left there."""
        column = PARTITIONS[base][0]
        for (value,) in listed(self._spark, f"{self._directory}/{RECENT[base]}", column):
            path = f"{self._directory}/{RECENT[base]}/{column}={value}"
            files, place = file_of(self._spark, path)
            if (
                _is_over(base, f"{column}={value}", self._lateness + GRACE)
                and not files.getContentSummary(place).getFileCount()
            ):
                files.delete(place, True)


def _is_over(base: str, place: str, lateness: timedelta) -> bool:
    """Return whether a partition gets no more rows, not even late ones."""
    start = datetime.fromisoformat(place.partition("/")[0].partition("=")[2]).replace(tzinfo=UTC)
    return start + LASTS[base] + lateness <= datetime.now(UTC)
