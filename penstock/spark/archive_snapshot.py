"""Snapshot of the archive for some namespaces, taken once it has caught up with their counters or timed out."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.accounting.fanout import Branch, Pattern
from penstock.accounting.snapshot import NamespaceSnapshot, Snapshot
from penstock.spark import archive, conservation
from penstock.spark.conservation import DuplicateRun, Numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_SECONDS: Final = 1.0


@dataclass
class ArchiveSnapshot:
    """The archived events of some namespaces, up to the last event that the counters in Redis include."""

    rows: "DataFrame | None"
    numbers: dict[str, Numbers]
    holes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    doubles: list[DuplicateRun] = field(default_factory=list)
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    irregular: list[Any] = field(default_factory=list)
    """Messages that have not ended exactly once: ``conservation.irregular``."""
    revived: dict[tuple[str, str], int] = field(default_factory=dict)
    uneven: list[dict[str, Pattern]] = field(default_factory=list)
    """By group of sibling branches: xids with different numbers of copies."""

    @property
    def cut(self) -> bool:
        """Return True if a result reached ``MAX_ROWS``, so that more may exist."""
        return max(map(len, (self.irregular, *self.uneven)), default=0) == conservation.MAX_ROWS

    @property
    def mixed(self) -> set[str]:
        """Namespaces with two histories, whose sums mean nothing."""
        return {run.namespace for run in self.doubles if run.entries > 1}

    def is_complete(self, namespace: str) -> bool:
        """Return True if no event of ``namespace`` is missing."""
        numbers = self.numbers.get(namespace)
        return numbers is None or not (numbers.behind or numbers.lost)

    def open(self, namespace: str) -> list[str]:
        """Return the ids of the messages that have not ended."""
        open = (each for each in self.irregular if each["outcome"] == "open")
        return [each["id"] for each in open if each["namespace"] == namespace]


def take_snapshot(
    spark: "SparkSession",
    directory: str,
    books: Mapping[str, NamespaceSnapshot],
    sibling_groups: Sequence[Sequence[Branch]],
    patience: float,
    say: Callable[[str], object],
) -> ArchiveSnapshot:
    """Read the archive of the namespaces in ``books``. Wait for one that is behind until ``patience`` s pass unchanged.

    ``say`` is called with each step. Raise ``NoArchive`` if the directory holds none.
    """
    last = {name: count for name, book in books.items() if (count := book.count("events"))}
    if not last:
        archive.events(spark, directory)  # raises NoArchive
        return ArchiveSnapshot(None, {}, uneven=[{} for _ in sibling_groups])
    say("reading the archive")
    snapshot = _read(spark, directory, last)
    changed, rows = time.monotonic(), _row_count(snapshot)
    while not all(map(snapshot.is_complete, last)) and time.monotonic() - changed < patience:
        say("waiting for events that are not archived yet")
        time.sleep(POLL_SECONDS)
        snapshot = _read(spark, directory, last)
        if _row_count(snapshot) != rows:
            changed, rows = time.monotonic(), _row_count(snapshot)
    assert snapshot.rows is not None
    snapshot.holes = conservation.holes(snapshot.rows, snapshot.numbers)
    snapshot.doubles = conservation.doubles(snapshot.rows, snapshot.numbers)
    if snapshot.doubles:
        snapshot.rows = snapshot.rows.dropDuplicates(["namespace", "entry", "place"])
    say("following every message")
    snapshot.kinds, snapshot.revived = conservation.kinds(snapshot.rows)
    snapshot.irregular = conservation.irregular(snapshot.rows)
    say("comparing legs")
    for siblings in sibling_groups:
        lists = [(leg.list, [book.namespace for book in leg.consumers]) for leg in siblings]
        snapshot.uneven.append(dict(sorted(conservation.uneven(snapshot.rows, lists))))
    return snapshot


def _read(spark: "SparkSession", directory: str, last: dict[str, int]) -> ArchiveSnapshot:
    rows = conservation.up_to(archive.events(spark, directory, namespaces=list(last)), last)
    return ArchiveSnapshot(rows, conservation.numbers(rows, last))


def _row_count(snapshot: ArchiveSnapshot) -> int:
    return sum(each.rows for each in snapshot.numbers.values())


def strangers(spark: "SparkSession", directory: str, books: Snapshot) -> dict[str, int]:
    """Return the number of archived events by namespace that the server does not know."""
    found = archive.events(spark, directory).groupBy("namespace").count().collect()
    return {namespace: count for namespace, count in found if namespace not in books.tracked}
