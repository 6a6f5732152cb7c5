"""Publishing of recent rows: those of many micro-batches become few files, which stay for good.

The rows are written aside and counted, then claimed, then moved: see ``penstock.spark.claims``. The next merge finishes
what was interrupted.
"""

import time
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote
from uuid import uuid4

from penstock.base.errors import PenstockError, Unsuitable
from penstock.spark.archive import (
    ASIDE,
    BEGUN,
    MALFORMED,
    PARTITIONS,
    RECENT,
    ROLLUPS,
    SCHEMAS,
    TAKEN_OVER,
    WRITING,
    delete,
    listed,
    mounted,
    move,
)
from penstock.spark.claims import (
    PUBLISHED,
    PUBLISHING,
    Batches,
    Claim,
    exists,
    file_of,
    is_cut_off,
    read_claim,
    write_claim,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_ROWS: Final = 4_000_000
"""Maximum number of rows of a file: about 100 MB."""
STAGED: Final = ".spark-staging-*"
"""Directories that Spark leaves if it is killed; other readers than Spark may read them."""
KILLED_SECONDS: Final = 86_400.0
"""Age of such a directory of micro-batches from which no process moves it into place any more.

If it were gone then, Spark would have deleted first what it is to replace.
"""


class Merger:
    """Publishes rows of one archive."""

    def __init__(self, spark: "SparkSession", directory: str) -> None:
        self._spark, self._directory = spark, directory
        self._is_mounted = mounted(spark, directory) is not None
        if exists(spark, f"{directory}/{BEGUN}"):
            move(spark, f"{directory}/{BEGUN}", f"{directory}/{ASIDE}/{uuid4().hex}")
        self._finish_all()
        delete(spark, f"{directory}/{ASIDE}")
        for root in (*RECENT, *RECENT.values(), ROLLUPS, MALFORMED):
            files, killed = file_of(spark, f"{directory}/{root}/{STAGED}")
            least = KILLED_SECONDS if root in RECENT.values() else 0
            for each in files.globStatus(killed) or ():
                if time.time() - each.getModificationTime() / 1000 >= least:
                    files.delete(each.getPath(), True)

    def merge(self, query: str, repeatable: int, *bases: str) -> int:
        """Publish what is recent of ``bases``, by default all; return how many micro-batches had events.

        Leave ``repeatable`` and later micro-batches of ``query``: they may be written again.
        """
        self._finish_all()
        published = 0
        for base in bases or RECENT:
            names = self._unpublished(f"{self._directory}/{RECENT[base]}")
            found = sorted(each for name in names if (each := Batches.of(name)))
            settled = [each for each in found if each.query != query or each.last < repeatable]
            for _, several in groupby(settled, attrgetter("query")):
                self._publish(base, list(several))
            published = max(published, len(settled))
        return published

    def _unpublished(self, recent: str) -> list[str]:
        """Return the names of the micro-batches; delete those that were written again after they were published."""
        names = [name for (name,) in listed(self._spark, recent, "batch")]
        whole = read_claim(self._spark, f"{recent}/{PUBLISHED}")
        again = {name for name in names if whole and whole.has_published(name)}
        for name in again:
            delete(self._spark, f"{recent}/batch={name}")
        return [name for name in names if name not in again]

    def _publish(self, base: str, several: Sequence[Batches]) -> None:
        """Write the rows of ``several`` aside, claim them, and move them."""
        name = uuid4().hex
        try:
            claim = self._claim(base, several, name)
        except BaseException:
            # This alone: after a takeover, others write aside, too.
            delete(self._spark, f"{self._directory}/{ASIDE}/{name}")
            raise
        self._finish(base, claim, again=False)

    def _claim(self, base: str, several: Sequence[Batches], name: str) -> Claim:
        """Write the rows of ``several`` aside as ``name`` and claim them."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        recent, aside = f"{self._directory}/{RECENT[base]}", f"{self._directory}/{ASIDE}/{name}"
        batches = Batches(several[0].query, several[0].first, several[-1].last)
        seen = Observation()
        rows = self._spark.read.schema(SCHEMAS[base]).parquet(*(f"{recent}/batch={each.name}" for each in several))
        one = rows.drop("batch").observe(seen, F.count(F.lit(1)).alias("rows")).coalesce(1)
        one.write.options(**WRITING, maxRecordsPerFile=FILE_ROWS).partitionBy(*PARTITIONS[base]).parquet(aside)
        by_file = self._spark.read.parquet(aside).groupBy("_metadata.file_path", "_metadata.file_size").count()
        written = by_file.collect()
        if (count := sum(each["count"] for each in written)) != seen.get["rows"]:
            raise PenstockError(f"{recent}: of {seen.get['rows']} rows {count} were written; nothing is published")
        files = {unquote(each["file_path"]).partition(f"/{name}/")[2]: each["file_size"] for each in written}
        claim = Claim(batches, [each.name for each in several], name, files)
        write_claim(self._spark, f"{aside}/{PUBLISHED}", claim)
        if not write_claim(self._spark, f"{recent}/{PUBLISHING}", claim):
            raise PenstockError(f"{recent}: another pipeline publishes these events, too")
        return claim

    def _finish_all(self) -> None:
        """Finish what is claimed."""
        for base, root in RECENT.items():
            path = f"{self._directory}/{root}/{PUBLISHING}"
            if claim := read_claim(self._spark, path):
                self._finish(base, claim, again=True)
            elif is_cut_off(self._spark, path):
                delete(self._spark, path)

    def _finish(self, base: str, claim: Claim, *, again: bool) -> None:
        """Move files into place; then delete the recent directories that have the same rows, and the first claim.

        With ``again``, some may have been moved. If recent directories are gone before all are, another process has
        published them while this one was stopped: then the claim is void.
        """
        recent, aside = f"{self._directory}/{RECENT[base]}", f"{self._directory}/{ASIDE}/{claim.aside}"
        whole = f"{recent}/{PUBLISHED}"
        names = self._unpublished(recent)  # before the claim that lets them go
        moved = read_claim(self._spark, whole) == claim
        if not moved and set(names).issuperset(claim.covered):
            moved = self._move_all(aside, f"{self._directory}/{base}", claim, again=again)
            if moved:
                self._let_go(aside, whole, claim)
        if moved:
            for name in claim.covered:
                delete(self._spark, f"{recent}/batch={name}")
        delete(self._spark, aside)
        if read_claim(self._spark, f"{recent}/{PUBLISHING}") == claim:
            delete(self._spark, f"{recent}/{PUBLISHING}")

    def _move_all(self, aside: str, below: str, claim: Claim, *, again: bool) -> bool:
        """Move the files of ``claim`` from ``aside``; return False if another process has deleted it unclaimed."""
        places = {
            place: [file.rpartition("/")[2] for file in files]
            for place, files in groupby(sorted(claim.files), lambda file: file.rpartition("/")[0])
        }
        targets = {place: f"{below}/{place}/batch={claim.batches.name}" for place in places}
        begun = {place for place, target in targets.items() if again and exists(self._spark, target)}
        if not begun and not exists(self._spark, aside):
            return False
        for place, target in targets.items():
            if place not in begun:
                move(self._spark, f"{aside}/{place}", target)
                continue
            there = self._sizes(target)
            for name in places[place]:
                if there.get(name) != claim.files[f"{place}/{name}"]:
                    delete(self._spark, f"{target}/{name}")  # cut off
                    move(self._spark, f"{aside}/{place}/{name}", f"{target}/{name}")
        return True

    def _let_go(self, aside: str, whole: str, claim: Claim) -> None:
        """Write to ``whole`` that the files of ``claim`` are in place.

        Raise an error if another process has finished the claim: ``whole`` may be a later one by now.
        """
        staged = f"{aside}/{PUBLISHED}"
        if self._is_mounted and exists(self._spark, staged):
            move(self._spark, staged, whole)  # fails if it is gone by now
        elif exists(self._spark, aside):
            write_claim(self._spark, whole, claim, again=True)
        else:
            raise Unsuitable(f"{self._directory}: {TAKEN_OVER}")

    def _sizes(self, directory: str) -> dict[str, int]:
        """Return the size (bytes) of each file by its name."""
        files, place = file_of(self._spark, directory)
        return {str(each.getPath().getName()): int(each.getLen()) for each in files.listStatus(place)}
