"""What an archive tells of some namespaces, read once it has all that they have counted, or does not get it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.accounting.attribution import Pattern
from penstock.accounting.fanout import Branch
from penstock.accounting.snapshot import NamespaceSnapshot, Snapshot
from penstock.spark import archive, conservation
from penstock.spark.conservation import Numbers, Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOK: Final = 1.0
"""Seconds between two looks."""


@dataclass
class Told:
    """What the archive says of the chosen namespaces, up to the events that the books know."""

    rows: "DataFrame | None"
    numbers: dict[str, Numbers]
    holes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    doubles: list[Run] = field(default_factory=list)
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    odd: list[Any] = field(default_factory=list)
    revived: dict[tuple[str, str], int] = field(default_factory=dict)
    uneven: list[dict[str, Pattern]] = field(default_factory=list)
    """For each company."""

    @property
    def cut(self) -> bool:
        """Whether there is more than is brought here."""
        return max(map(len, (self.odd, *self.uneven)), default=0) == conservation.MOST

    @property
    def mixed(self) -> set[str]:
        """Namespaces with two histories, of which no sum can be made."""
        return {run.namespace for run in self.doubles if run.entries > 1}

    def is_whole(self, namespace: str) -> bool:
        numbers = self.numbers.get(namespace)
        return numbers is None or not (numbers.behind or numbers.lost)

    def open(self, namespace: str) -> list[str]:
        """Ids of the messages that have not ended."""
        return [each["id"] for each in self.odd if each["namespace"] == namespace and each["fate"] == "open"]


def read(
    spark: "SparkSession",
    directory: str,
    books: Mapping[str, NamespaceSnapshot],
    companies: Sequence[Sequence[Branch]],
    patience: float,
    say: Callable[[str], object],
) -> Told:
    """What is told of ``books``; an archive that is behind is waited for while it grows, and for ``patience`` (s)."""
    last = {name: count for name, book in books.items() if (count := book.count("events"))}
    if not last:
        archive.events(spark, directory)  # which says so where there is none
        return Told(None, {}, uneven=[{} for _ in companies])
    say("reading the archive")
    told = _read(spark, directory, last)
    looked, seen = time.monotonic(), _seen(told)
    while not all(map(told.is_whole, last)) and time.monotonic() - looked < patience:
        say("waiting for events that are not archived yet")
        time.sleep(LOOK)
        told = _read(spark, directory, last)
        if _seen(told) != seen:
            looked, seen = time.monotonic(), _seen(told)
    assert told.rows is not None
    told.holes, told.doubles = (
        conservation.holes(told.rows, told.numbers),
        conservation.doubles(told.rows, told.numbers),
    )
    if told.doubles:
        told.rows = told.rows.dropDuplicates(["namespace", "entry", "place"])
    say("following every message")
    told.kinds, told.revived = conservation.kinds(told.rows)
    told.odd = conservation.odd(told.rows)
    say("comparing legs")
    for company in companies:
        lists = [(leg.list, [book.namespace for book in leg.books]) for leg in company]
        told.uneven.append(dict(sorted(conservation.uneven(told.rows, lists))))
    return told


def _read(spark: "SparkSession", directory: str, last: dict[str, int]) -> Told:
    rows = conservation.upto(archive.events(spark, directory, namespaces=list(last)), last)
    return Told(rows, conservation.numbers(rows, last))


def _seen(told: Told) -> int:
    return sum(each.rows for each in told.numbers.values())


def strangers(spark: "SparkSession", directory: str, books: Snapshot) -> dict[str, int]:
    """Events of namespaces that the server does not know."""
    found = archive.events(spark, directory).groupBy("namespace").count().collect()
    return {namespace: count for namespace, count in found if namespace not in books.tracked}
