"""What an archive says of every message, and whether its events are all there: expressions of Spark, no Python in them.

Events of a namespace are numbered from 1, and counters move in the transaction that tells of them. So the events up to
the number that was the last one at some instant are just what was counted at that instant, however busy the system is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.tracking.events import END_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKET: Final = 32_768
"""Numbers in one of Spark's bitmaps."""
MOST: Final = 1_000_000
"""Rows that are brought here at most."""


@dataclass
class Numbers:
    """Which events of a namespace there are, of those that there must be."""

    wanted: int
    last: int = 0
    rows: int = 0
    different: int = 0
    at: float = 0
    """When the last one was told (s since the epoch)."""
    buckets: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Of each bucket the rows, how many different numbers they have, and the highest of these."""

    @property
    def behind(self) -> int:
        """Events that are to come: those after the last one."""
        return self.wanted - self.last

    @property
    def lost(self) -> int:
        """Events that will not come: those before the last one that are not there."""
        return self.last - self.different

    @property
    def twice(self) -> int:
        """Rows too many."""
        return self.rows - self.different

    @property
    def faulty(self) -> list[int]:
        """Buckets in which a number is missing, or not alone."""
        return [
            bucket
            for bucket, (rows, different, _) in self.buckets.items()
            if rows != different or different != min(self.last - (bucket - 1) * BUCKET, BUCKET)
        ]


@dataclass(frozen=True)
class Run:
    """Events that follow each other, each of them in several rows."""

    namespace: str
    first: int
    last: int
    rows: int
    entries: int
    """How many different events have that number."""
    batches: tuple[str, ...]

    @property
    def alike(self) -> tuple[object, ...]:
        return self.namespace, self.rows, self.entries, self.batches


def upto(events: "DataFrame", last: Mapping[str, int]) -> "DataFrame":
    """The events of the namespaces in ``last`` that have a number up to that which it says."""
    from pyspark.sql import functions as F

    pairs = [F.lit(word) for pair in last.items() for word in pair]
    return events.where(F.col("number") <= F.create_map(*pairs)[F.col("namespace")])


def numbers(rows: "DataFrame", last: Mapping[str, int]) -> dict[str, Numbers]:
    """Of ``upto(events, last)``."""
    from pyspark.sql import functions as F

    number = F.col("number")
    bits = F.bitmap_construct_agg(F.bitmap_bit_position(number))
    found = {namespace: Numbers(wanted) for namespace, wanted in last.items()}
    for namespace, bucket, count, different, highest, at in (
        rows.groupBy("namespace", F.bitmap_bucket_number(number).alias("bucket"))
        .agg(F.count("*"), F.bitmap_count(bits), F.max(number), F.max(F.unix_micros("at")))
        .collect()
    ):
        one = found[namespace]
        one.rows, one.different, one.last = one.rows + count, one.different + different, max(one.last, highest)
        one.at = max(one.at, at / 1e6)
        one.buckets[bucket] = count, different, highest
    return found


def holes(rows: "DataFrame", found: Mapping[str, Numbers]) -> dict[str, list[tuple[int, int]]]:
    """The first and the last number of each run of events that are missing before the last one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    gaps: dict[str, list[tuple[int, int]]] = {name: [] for name, one in found.items() if one.lost}
    if not gaps:
        return {}
    start = (F.col("bucket") - 1) * BUCKET
    before = F.lag("number").over(Window.partitionBy("namespace", "bucket").orderBy("number"))
    inside = _faulty(rows, found).withColumn("before", F.coalesce(before, start)).where("number > before + 1")
    for namespace, after, number in inside.select("namespace", "before", "number").limit(MOST).collect():
        gaps[namespace].append((after + 1, number - 1))
    for namespace in gaps:
        one = found[namespace]
        for bucket in range(1, (one.last - 1) // BUCKET + 2):
            first, end = (bucket - 1) * BUCKET, min(bucket * BUCKET, one.last)
            highest = one.buckets.get(bucket, (0, 0, first))[2]
            if highest < end:
                gaps[namespace].append((highest + 1, end))
    return {namespace: _joined(sorted(each)) for namespace, each in gaps.items()}


def doubles(rows: "DataFrame", found: Mapping[str, Numbers]) -> list[Run]:
    """Numbers that several rows have."""
    from pyspark.sql import functions as F

    if not any(one.twice for one in found.values()):
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
    runs: list[Run] = []
    for each in counted.where("rows > 1").orderBy("namespace", "number").limit(MOST).collect():
        number, batches = each["number"], tuple(each["batches"])
        run = Run(each["namespace"], number, number, each["rows"], each["entries"], batches)
        if runs and runs[-1].last + 1 == number and runs[-1].alike == run.alike:
            run = replace(runs.pop(), last=number)
        runs.append(run)
    return runs


def kinds(rows: "DataFrame") -> tuple[dict[str, dict[str, int]], dict[tuple[str, str], int]]:
    """How many events of each kind, by namespace; and how many messages were revived, by namespace and list."""
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


def fates(rows: "DataFrame") -> "DataFrame":
    """A row for each message: ``namespace id``, how often it was ``registered done late dead expired``, its ``fate``.

    ``fate`` is ``done dead expired open``, ``doubled`` where it was registered twice or has ended twice, or ``unknown``
    where its registration is not there.
    """
    from pyspark.sql import functions as F

    counted = (
        rows.where(F.col("event").isin("registered", *END_EVENTS))
        .groupBy("namespace", "id")
        .agg(*(F.count_if(F.col("event") == event).alias(event) for event in ("registered", *END_EVENTS)))
    )
    ended = sum((F.col(event) for event in END_EVENTS), F.lit(0))
    fate = (
        F.when((F.col("registered") > 1) | (ended > 1), "doubled")
        .when(F.col("registered") == 0, "unknown")
        .when(F.col("done") + F.col("late") > 0, "done")
        .when(F.col("dead") > 0, "dead")
        .when(F.col("expired") > 0, "expired")
        .otherwise("open")
    )
    return counted.withColumn("fate", fate)


def odd(rows: "DataFrame") -> list[Any]:
    """Messages that have not ended just once, as in ``fates``; ``MOST`` of them at most."""
    return fates(rows).where("fate in ('open', 'doubled', 'unknown')").limit(MOST).orderBy("namespace", "id").collect()


def uneven(rows: "DataFrame", legs: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, tuple[int, ...]]]:
    """Xids of which the legs have had unlike numbers of copies, and how many; ``MOST`` of them at most.

    A leg is a list, and the namespaces that take from it. What was revived comes through it again, and counts once.
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
    found = counted.where(F.least(*names) != F.greatest(*names)).limit(MOST).collect()
    return [(xid, tuple(counts)) for xid, *counts in found]


def registrations(rows: "DataFrame", xids: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """Namespace and id of all messages that have one of ``xids``."""
    from pyspark.sql import functions as F

    wanted = rows.sparkSession.createDataFrame([(xid,) for xid in sorted(set(xids))], "xid string")
    registered = rows.where("event = 'registered'").join(F.broadcast(wanted), "xid")
    found: dict[str, list[tuple[str, str]]] = {}
    for xid, namespace, id in registered.orderBy("namespace", "number").select("xid", "namespace", "id").collect():
        found.setdefault(xid, []).append((namespace, id))
    return found


def last_events(rows: "DataFrame", ids: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    """By namespace and id the last that happened: ``xid event queue service attempt at`` (s since the epoch)."""
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
