"""Completeness checks of archived events, as Spark expressions without Python functions.

Events of a namespace are numbered from 1, and counters change in the transaction that appends the events. So the events
up to the number that was the last one at some instant match the counters of that instant, however busy the system is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.tracking.events import END_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BITMAP_SIZE: Final = 32_768
"""Numbers in one bucket, which is one of Spark's bitmaps."""
MAX_ROWS: Final = 1_000_000
"""Maximum number of rows that a function here collects."""


@dataclass
class Numbers:
    """Numbers of the archived events of a namespace, compared with the number that Redis counts."""

    wanted: int
    """Number of the last event in Redis."""
    last: int = 0
    """Number of the last archived event."""
    rows: int = 0
    distinct: int = 0
    """Distinct numbers in ``rows``."""
    at: float = 0
    """Time of the last archived event (s since the epoch)."""
    buckets: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By bucket: rows, distinct numbers, highest number."""

    @property
    def behind(self) -> int:
        """Number of events after the last archived one, which are still to come."""
        return self.wanted - self.last

    @property
    def lost(self) -> int:
        """Number of events missing before the last archived one, which will not come."""
        return self.last - self.distinct

    @property
    def surplus(self) -> int:
        """Number of rows whose number another row has, too."""
        return self.rows - self.distinct

    @property
    def faulty(self) -> list[int]:
        """Buckets in which a number is missing or occurs twice."""
        return [
            bucket
            for bucket, (rows, distinct, _) in self.buckets.items()
            if rows != distinct or distinct != min(self.last - (bucket - 1) * BITMAP_SIZE, BITMAP_SIZE)
        ]


@dataclass(frozen=True)
class DuplicateRun:
    """Consecutive numbers, each of which has several rows."""

    namespace: str
    first: int
    last: int
    rows: int
    """Rows of each number."""
    entries: int
    """Different events with each number."""
    batches: tuple[str, ...]

    @property
    def alike(self) -> tuple[object, ...]:
        return self.namespace, self.rows, self.entries, self.batches


def up_to(events: "DataFrame", last: Mapping[str, int]) -> "DataFrame":
    """Return the events of the namespaces in ``last`` whose number is at most the value there."""
    from pyspark.sql import functions as F

    pairs = [F.lit(word) for pair in last.items() for word in pair]
    return events.where(F.col("number") <= F.create_map(*pairs)[F.col("namespace")])


def numbers(rows: "DataFrame", last: Mapping[str, int]) -> dict[str, Numbers]:
    """Summarize ``rows``, which are ``up_to(events, last)``, by namespace."""
    from pyspark.sql import functions as F

    number = F.col("number")
    bits = F.bitmap_construct_agg(F.bitmap_bit_position(number))
    found = {namespace: Numbers(wanted) for namespace, wanted in last.items()}
    for namespace, bucket, count, distinct, highest, at in (
        rows.groupBy("namespace", F.bitmap_bucket_number(number).alias("bucket"))
        .agg(F.count("*"), F.bitmap_count(bits), F.max(number), F.max(F.unix_micros("at")))
        .collect()
    ):
        one = found[namespace]
        one.rows, one.distinct, one.last = one.rows + count, one.distinct + distinct, max(one.last, highest)
        one.at = max(one.at, at / 1e6)
        one.buckets[bucket] = count, distinct, highest
    return found


def holes(rows: "DataFrame", found: Mapping[str, Numbers]) -> dict[str, list[tuple[int, int]]]:
    """Return, by namespace, the first and last number of each run of events missing before the last one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    gaps: dict[str, list[tuple[int, int]]] = {name: [] for name, one in found.items() if one.lost}
    if not gaps:
        return {}
    start = (F.col("bucket") - 1) * BITMAP_SIZE
    before = F.lag("number").over(Window.partitionBy("namespace", "bucket").orderBy("number"))
    inside = _faulty(rows, found).withColumn("before", F.coalesce(before, start)).where("number > before + 1")
    for namespace, after, number in inside.select("namespace", "before", "number").limit(MAX_ROWS).collect():
        gaps[namespace].append((after + 1, number - 1))
    for namespace in gaps:
        one = found[namespace]
        for bucket in range(1, (one.last - 1) // BITMAP_SIZE + 2):
            first, end = (bucket - 1) * BITMAP_SIZE, min(bucket * BITMAP_SIZE, one.last)
            highest = one.buckets.get(bucket, (0, 0, first))[2]
            if highest < end:
                gaps[namespace].append((highest + 1, end))
    return {namespace: _joined(sorted(each)) for namespace, each in gaps.items()}


def doubles(rows: "DataFrame", found: Mapping[str, Numbers]) -> list[DuplicateRun]:
    """Return the numbers that several rows have, at most ``MAX_ROWS``."""
    from pyspark.sql import functions as F

    if not any(one.surplus for one in found.values()):
        return []
    counted = (
        _faulty(rows, found)
        .groupBy("namespace", "number")
        .agg(
            F.count("*").alias("rows"),
            F.count_distinct("entry", "place").alias("entries"),
            F.array_sort(F.collect_set("batch")).alias("batches"),
        )
    )
    runs: list[DuplicateRun] = []
    for each in counted.where("rows > 1").orderBy("namespace", "number").limit(MAX_ROWS).collect():
        number, batches = each["number"], tuple(each["batches"])
        run = DuplicateRun(each["namespace"], number, number, each["rows"], each["entries"], batches)
        if runs and runs[-1].last + 1 == number and runs[-1].alike == run.alike:
            run = replace(runs.pop(), last=number)
        runs.append(run)
    return runs


def kinds(rows: "DataFrame") -> tuple[dict[str, dict[str, int]], dict[tuple[str, str], int]]:
    """Return the number of events by namespace and kind, and of revived messages by namespace and list."""
    from pyspark.sql import functions as F

    back = F.when(F.col("event") == "revived", F.col("queue")).alias("back")
    found: dict[str, dict[str, int]] = {}
    revived: dict[tuple[str, str], int] = {}
    for namespace, event, queue, count in rows.groupBy("namespace", "event", back).count().collect():
        counts = found.setdefault(namespace, {})
        counts[event] = counts.get(event, 0) + count
        if queue is not None:
            revived[namespace, queue] = count
    return found, revived


def outcomes(rows: "DataFrame") -> "DataFrame":
    """Return a row for each message, with its ``outcome``.

    Columns: ``namespace id``, the number of events ``registered done late dead expired``, and ``outcome``: ``done``,
    ``dead``, ``expired``, ``open``, ``doubled`` (registered or ended several times) or ``unregistered``.
    """
    from pyspark.sql import functions as F

    counted = (
        rows.where(F.col("event").isin("registered", *END_EVENTS))
        .groupBy("namespace", "id")
        .agg(*(F.count_if(F.col("event") == event).alias(event) for event in ("registered", *END_EVENTS)))
    )
    ended = sum((F.col(event) for event in END_EVENTS), F.lit(0))
    outcome = (
        F.when((F.col("registered") > 1) | (ended > 1), "doubled")
        .when(F.col("registered") == 0, "unregistered")
        .when(F.col("done") + F.col("late") > 0, "done")
        .when(F.col("dead") > 0, "dead")
        .when(F.col("expired") > 0, "expired")
        .otherwise("open")
    )
    return counted.withColumn("outcome", outcome)


def irregular(rows: "DataFrame") -> list[Any]:
    """Return the messages that have not ended exactly once, as in ``outcomes``; at most ``MAX_ROWS``."""
    found = outcomes(rows).where("outcome in ('open', 'doubled', 'unregistered')")
    return found.limit(MAX_ROWS).orderBy("namespace", "id").collect()


def uneven(rows: "DataFrame", legs: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, tuple[int, ...]]]:
    """Return xids with different numbers of copies on the legs, with these numbers; at most ``MAX_ROWS``.

    A leg is a list and the namespaces that take from it. A revived message passes the list again and counts once.
    """
    from pyspark.sql import functions as F

    event, namespace = F.col("event"), F.col("namespace")

    def copies(list: str, namespaces: Sequence[str]) -> "Column":
        ours = namespace.isin(*namespaces)
        back = ours & (event == "revived") & (F.col("queue") == list)
        return F.count_if(ours & (event == "registered")) - F.count_if(back)

    names = [f"leg{place}" for place in range(len(legs))]
    concerned = namespace.isin(*(name for _, namespaces in legs for name in namespaces))
    counted = (
        rows.where(concerned & event.isin("registered", "revived"))
        .groupBy("xid")
        .agg(*(copies(*leg).alias(name) for leg, name in zip(legs, names, strict=True)))
    )
    found = counted.where(F.least(*names) != F.greatest(*names)).limit(MAX_ROWS).collect()
    return [(xid, tuple(counts)) for xid, *counts in found]


def registrations(rows: "DataFrame", xids: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """Return, by xid, the namespace and id of all messages that have one of ``xids``."""
    from pyspark.sql import functions as F

    wanted = rows.sparkSession.createDataFrame([(xid,) for xid in sorted(set(xids))], "xid string")
    registered = rows.where("event = 'registered'").join(F.broadcast(wanted), "xid")
    found: dict[str, list[tuple[str, str]]] = {}
    for xid, namespace, id in registered.orderBy("namespace", "number").select("xid", "namespace", "id").collect():
        found.setdefault(xid, []).append((namespace, id))
    return found


def last_events(rows: "DataFrame", ids: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    """Return, by namespace and id, the last event: ``xid event queue service attempt at`` (s since the epoch)."""
    from pyspark.sql import functions as F

    wanted = rows.sparkSession.createDataFrame(sorted(set(ids)), "namespace string, id string")
    at = (F.unix_micros("at") / 1e6).alias("at")
    last = F.max_by(F.struct("xid", "event", "queue", "service", "attempt", at), "number").alias("last")
    ours = rows.join(F.broadcast(wanted), ["namespace", "id"]).groupBy("namespace", "id")
    found = ours.agg(last).select("namespace", "id", "last.*").collect()
    return {(each["namespace"], each["id"]): each for each in found}


def _faulty(rows: "DataFrame", found: Mapping[str, Numbers]) -> "DataFrame":
    from pyspark.sql import functions as F

    buckets = [(namespace, bucket) for namespace, one in found.items() for bucket in one.faulty]
    wanted = rows.sparkSession.createDataFrame(buckets, "namespace string, bucket long")
    numbered = rows.withColumn("bucket", F.bitmap_bucket_number("number"))
    return numbered.join(F.broadcast(wanted), ["namespace", "bucket"])


def _joined(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in runs:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined
