"""Numbers of a report: events of namespaces in an interval of time, computed by Spark."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.archive import events
from penstock.spark.lifecycles import FAILURES, UNKNOWN, Lifecycle, ended_messages, slowest
from penstock.spark.rollups import PERCENTILES, SHARES, minutes, windows
from penstock.spark.time_axis import TimeAxis
from penstock.tracking.events import END_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOWEST: Final = 20
TIMED: Final = ("done", "late")
MEASURED: Final = ("done", "timeout")
"""Events whose seconds are compared with the time allowed."""


@dataclass(frozen=True)
class Coverage:
    """Events of a namespace in an interval, from ``first`` to ``last`` (s since the epoch)."""

    namespace: str
    events: int
    first: float
    last: float
    opening: int
    """Messages that were open at its beginning, by the archived events."""
    whole: bool
    """Whether the archive has every event of the namespace before the interval."""


@dataclass(frozen=True)
class Times:
    """Seconds from the last delivery to the end, of all messages and by bucket (None if it has none)."""

    count: int
    mean: float
    max: float
    percentiles: dict[str, float]
    over_time: dict[str, list[float | None]]


@dataclass(frozen=True)
class Backlog:
    """Messages that have not ended, at the beginning of the interval and at the end of each bucket."""

    opening: int
    known: bool
    """False if the archive begins later than the namespace: then the numbers are lower bounds."""
    over_time: list[int]


@dataclass(frozen=True)
class Section:
    """Numbers of a namespace; lists have one item for each bucket of the report's axis."""

    namespace: str
    totals: dict[str, int]
    """By kind of event."""
    counts: dict[str, list[int]]
    times: dict[str, Times]
    """By event, ``done`` and ``late``."""
    histogram: dict[str, list[int]]
    """By event, ``done`` and ``timeout``: attempts by tenth of the time allowed, and those that reached it."""
    unmeasured: int
    """Such attempts whose allowed time is not archived."""
    dead: dict[str, list[int]]
    """Dead letters by reason."""
    backlog: Backlog
    slowest: list[Lifecycle]


@dataclass(frozen=True)
class Report:
    """Content of the page, the tables and the JSON. Moments are in seconds since the epoch."""

    archive: str
    since: float | None
    until: float | None
    first: float
    last: float
    axis: TimeAxis
    sections: list[Section]


def report(
    spark: "SparkSession",
    directory: str,
    namespaces: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> Report | None:
    """Report on ``namespaces``, or all, of the archive in ``directory``. Return None if no event matches.

    Raise ``NoArchive`` if there is no archive.
    """
    from pyspark.sql import functions as F

    found = coverage(spark, directory, namespaces, since, until)
    if not found:
        return None
    first, last = min(each.first for each in found), max(each.last for each in found)
    axis = TimeAxis.over(first, last)
    rows = events(spark, directory, since=since, until=until, namespaces=namespaces)
    before = events(spark, directory, until=since, namespaces=namespaces) if since else None
    at = F.timestamp_seconds(axis.bucket_of("at") * axis.step + axis.start)
    parts = minutes(rows.withColumns({"at": at, "queue": F.lit("")}), "second").persist()
    lifecycles = ended_messages(rows, before).persist()
    try:
        over_time = _by_namespace(windows(parts, "second").withColumn("place", axis.bucket_of("start")))
        overall = _by_namespace(windows(parts.withColumn("start", F.lit(0).cast("timestamp")), "second"))
        died = _by_namespace(
            lifecycles.where("outcome = 'dead'")
            .groupBy("namespace", F.col("reason").alias("event"), axis.bucket_of("at").alias("place"))
            .count()
        )
        slow = slowest(lifecycles, SLOWEST)
    finally:
        parts.unpersist()
        lifecycles.unpersist()
    sections = [
        _section(each, axis, over_time[each.namespace], overall[each.namespace], died.get(each.namespace, []), slow)
        for each in found
    ]
    asked = [None if moment is None else moment.timestamp() for moment in (since, until)]
    return Report(directory, asked[0], asked[1], first, last, axis, sections)


def coverage(
    spark: "SparkSession",
    directory: str,
    namespaces: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[Coverage]:
    """Return the coverage of ``namespaces``, or all, that have events in the interval. Raise ``NoArchive``."""
    from pyspark.sql import functions as F

    at, event, number = F.col("at"), F.col("event"), F.col("number")
    inside = at >= F.lit(since) if since else F.lit(True)
    change = F.when(event == "registered", 1).when(event.isin(*END_EVENTS), -1)
    rows = (
        events(spark, directory, until=until, namespaces=namespaces)
        .groupBy("namespace")
        .agg(
            F.count_if(inside).alias("events"),
            F.min(F.when(inside, F.unix_micros(at))).alias("first"),
            F.max(F.when(inside, F.unix_micros(at))).alias("last"),
            F.sum(F.when(~inside, change)).alias("opening"),
            F.min(number).alias("lowest"),
            F.count(F.when(~inside, number)).alias("numbered"),
            F.max(F.when(~inside, number)).alias("highest"),
        )
        .where("events > 0")
    )
    return [
        Coverage(
            row.namespace,
            row.events,
            row.first / 1_000_000,
            row.last / 1_000_000,
            row.opening or 0,
            row.lowest == 1 and row.numbered >= (row.highest or 0),
        )
        for row in rows.sort("namespace").collect()
    ]


def _by_namespace(rows: "DataFrame") -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows.drop("start", "queue", "buckets").collect():
        found.setdefault(row.namespace, []).append(row)
    return found


def _section(
    covered: Coverage,
    axis: TimeAxis,
    over_time: list[Any],
    overall: list[Any],
    died: list[Any],
    slow: dict[str, list[Lifecycle]],
) -> Section:
    totals = {row.event: row["count"] for row in overall}
    counts = {kind: _line(over_time, kind, axis, "count", 0) for kind in totals}
    times = {
        row.event: Times(
            row.timed,
            row["sum"] / row.timed,
            row["max"],
            {name: row[name] for name in PERCENTILES},
            {name: _line(over_time, row.event, axis, name, None) for name in PERCENTILES},
        )
        for row in overall
        if row.event in TIMED and row.timed
    }
    histogram = {kind: next((row.histogram for row in overall if row.event == kind), [0] * SHARES) for kind in MEASURED}
    measured = sum(map(sum, histogram.values()))
    return Section(
        covered.namespace,
        totals,
        counts,
        times,
        histogram,
        sum(totals.get(kind, 0) for kind in MEASURED) - measured,
        {reason: _line(died, reason, axis, "count", 0) for reason in (*FAILURES, UNKNOWN)},
        _backlog(covered, counts, axis),
        slow.get(covered.namespace, []),
    )


def _line(rows: Iterable[Any], kind: str, axis: TimeAxis, column: str, nothing: Any) -> list[Any]:
    """Return ``column`` of the events ``kind`` by bucket, ``nothing`` for empty buckets."""
    line = [nothing] * axis.count
    for row in rows:
        if row.event == kind:
            line[row.place] = row[column]
    return line


def _backlog(covered: Coverage, counts: dict[str, list[int]], axis: TimeAxis) -> Backlog:
    none = [0] * axis.count
    ends = [sum(each) for each in zip(*(counts.get(kind, none) for kind in END_EVENTS), strict=True)]
    changes = [came - went for came, went in zip(counts.get("registered", none), ends, strict=True)]
    change = list(accumulate(changes))
    opening = covered.opening if covered.whole else max(covered.opening, 0, -min(change))
    return Backlog(opening, covered.whole, [opening + each for each in change])
