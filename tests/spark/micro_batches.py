"""Micro-batches written to an archive by hand, and events for its rollups."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.archive import DDL, EVENTS, RECENT, events, overwrite
from penstock.spark.claims import Batches
from tests.spark import DataFrame, SparkSession

if TYPE_CHECKING:
    import pyarrow as pa

NOW: Final = datetime.now(UTC)
NAMES: Final = ("shop", "a b:é%/=[x]")
"""Namespaces; the second is escaped in paths, and again in URLs."""
KEPT: Final = {"minute": 10**9, "hour": 10**9, "day": 10**9}
Event = dict[str, Any]


def write(spark: "SparkSession", place: Path, *batches: Batches, at: datetime = NOW, without: str = "") -> None:
    """Write micro-batches with three events of each namespace and unique ids."""
    same: dict[str, Any] = {"place": 0, "at": at, "date": at.date(), "extra": '{"node": "a"}'}
    records: list[dict[str, Any]] = [
        {**same, "entry": id, "id": id, "namespace": namespace, "batch": batch.name}
        for batch in batches
        for id in (f"{batch.first}-{row}" for row in range(3))
        for namespace in NAMES
    ]
    rows = spark.createDataFrame(records, DDL).drop(without)
    overwrite(rows, str(place / RECENT[EVENTS]), "batch")


def ids(spark: "SparkSession", place: Path) -> Counter[tuple[str, str]]:
    rows = events(spark, str(place)).select("namespace", "id").collect()
    return Counter((row["namespace"], row["id"]) for row in rows)


def expected(*numbers: int) -> Counter[tuple[str, str]]:
    return Counter((namespace, f"{number}-{row}") for namespace in NAMES for number in numbers for row in range(3))


def directories(place: Path, base: str = EVENTS) -> list[Path]:
    return sorted(place.glob(f"{base}/**/batch=*"))


def small(number: int, query: str = "abcdef12") -> Batches:
    return Batches(query, number, number)


def table(rows: list[Event]) -> "pa.Table":
    import pyarrow as pa

    words, moment = dict.fromkeys(["namespace", "queue", "event"], pa.string()), pa.timestamp("us", tz="UTC")
    numbers = {"attempt": pa.int32(), "seconds": pa.float64(), "timeout": pa.float64()}
    return pa.Table.from_pylist(rows, pa.schema({**words, "at": moment, **numbers}))


def counted(rows: list[Event]) -> "pa.Table":
    """Return ``rows`` by minute, as a micro-batch leaves them."""
    from penstock.spark.rollups import added_up, cells

    return added_up(cells(table(rows)))


def frame(spark: "SparkSession", rows: list[Event]) -> "DataFrame":
    return spark.createDataFrame(table(rows))


def now_and_before() -> tuple[datetime, datetime, list[Event]]:
    """Return a moment of this hour, one three days ago, and an event of each."""
    now = datetime.now(UTC)
    before = now - timedelta(days=3)
    done: Event = {"namespace": "shop", "queue": "out", "event": "done", "attempt": 1, "seconds": 1.0, "timeout": 2.0}
    return now, before, [done | {"at": now}, done | {"at": before}]
