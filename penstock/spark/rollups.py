"""Roll-ups of events: numbers of a window of time that add up to those of a larger window.

The same functions compute them from a micro-batch and from a whole archive. Times are counted in exponential buckets:
bucket ``k`` counts times above ``BASE ** (k - 1)`` up to ``BASE ** k`` seconds. A percentile is the geometric middle of
its bucket, so it is at most 5 % off. Buckets add up exactly, and sums are of whole microseconds.
"""

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SIZES: Final = {"minute": 60, "hour": 3_600, "day": 86_400}
"""Windows, by name, in seconds."""
BASE: Final = 1.1
LEAST: Final = -145
"""The bucket of times up to a microsecond, which count as 0."""
SHARES: Final = 11
"""Bins of a histogram: ten tenths of the time allowed, and times that reached it."""
KEYS: Final = ("start", "namespace", "queue", "event")
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def minutes(events: "DataFrame", unit: str = "minute") -> "DataFrame":
    """Return a row for each minute (or other ``unit`` of ``date_trunc``), namespace, queue and kind of event.

    Columns: ``start`` (timestamp), ``namespace queue event``, ``count``, ``timed`` (events with a time), ``micros``
    (their sum), ``max`` (s), ``histogram`` (11 counts: ten tenths of the time allowed, and times that reached it),
    ``buckets`` (map of bucket to count), ``attempts`` (the sum), ``timeouts``, ``dead``.
    """
    from pyspark.sql import functions as F

    seconds, event = F.col("seconds"), F.col("event")
    cells = events.groupBy(
        F.date_trunc(unit, "at").alias("start"),
        "namespace",
        "queue",
        "event",
        _bucket(seconds).alias("bucket"),
        _share(seconds, F.col("timeout")).alias("share"),
    ).agg(
        F.count("*").alias("count"),
        F.sum(F.round(seconds * 1_000_000).cast("long")).alias("micros"),
        F.max(seconds).alias("max"),
        F.sum("attempt").alias("attempts"),
    )
    count = F.col("count")
    timed = F.when(F.col("bucket").isNotNull(), count).otherwise(0)
    by_bucket = cells.groupBy(*KEYS, "bucket").agg(
        F.sum(count).alias("count"),
        F.sum(timed).alias("timed"),
        F.sum("micros").alias("micros"),
        F.max("max").alias("max"),
        F.sum("attempts").alias("attempts"),
        *(F.sum(F.when(F.col("share") == share, count).otherwise(0)).alias(f"h{share}") for share in range(SHARES)),
    )
    pair = F.when(F.col("bucket").isNotNull(), F.struct("bucket", "count"))
    return by_bucket.groupBy(*KEYS).agg(
        F.sum("count").alias("count"),
        F.sum("timed").alias("timed"),
        F.coalesce(F.sum("micros"), F.lit(0)).alias("micros"),
        F.max("max").alias("max"),
        F.array(*(F.sum(f"h{share}") for share in range(SHARES))).alias("histogram"),
        F.map_from_entries(F.collect_list(pair)).alias("buckets"),
        F.coalesce(F.sum("attempts"), F.lit(0)).alias("attempts"),
        F.sum(F.when(event == "timeout", count).otherwise(0)).alias("timeouts"),
        F.sum(F.when(event == "dead", count).otherwise(0)).alias("dead"),
    )


def windows(parts: "DataFrame", size: str) -> "DataFrame":
    """Add up rows of ``minutes``, of any number of micro-batches, to windows of ``size``: minute, hour or day.

    Columns: those of ``minutes``, ``sum`` and ``p50 p95 p99`` (s, null if no event had a time). ``parts`` may also be
    rows of smaller windows.
    """
    from pyspark.sql import functions as F

    def both(mine: "Column", others: "Column") -> "Column":
        return F.map_zip_with(
            mine, others, lambda _, one, other: F.coalesce(one, F.lit(0)) + F.coalesce(other, F.lit(0))
        )

    nothing = F.create_map().cast("map<int,bigint>")
    added = parts.groupBy(F.date_trunc(size, "start").alias("start"), *KEYS[1:]).agg(
        F.sum("count").alias("count"),
        F.sum("timed").alias("timed"),
        F.sum("micros").alias("micros"),
        F.max("max").alias("max"),
        F.array(*(F.sum(F.col("histogram")[share]) for share in range(SHARES))).alias("histogram"),
        F.reduce(F.collect_list("buckets"), nothing, both).alias("buckets"),
        F.sum("attempts").alias("attempts"),
        F.sum("timeouts").alias("timeouts"),
        F.sum("dead").alias("dead"),
    )
    return added.withColumn("sum", F.col("micros") / 1_000_000).withColumns(
        {name: _quantile(share) for name, share in PERCENTILES.items()}
    )


def _bucket(seconds: "Column") -> "Column":
    from pyspark.sql import functions as F

    logarithm = F.ceil(F.log(seconds) / math.log(BASE)).cast("int")
    return F.when(seconds > BASE**LEAST, logarithm).when(seconds.isNotNull(), LEAST)


def _share(seconds: "Column", timeout: "Column") -> "Column":
    from pyspark.sql import functions as F

    tenths = F.floor(seconds * (SHARES - 1) / timeout + 1e-9)  # 0.03 of 0.1 is 30 %, in binary fractions a hair less
    return F.when(tenths.isNotNull(), F.least(tenths, F.lit(SHARES - 1))).cast("int")


def _quantile(share: float) -> "Column":
    from pyspark.sql import functions as F

    wanted = F.ceil(F.col("timed") * share)

    def step(so_far: "Column", each: Any) -> "Column":
        seen = so_far["seen"] + each["value"]
        return F.struct(
            seen.alias("seen"), F.coalesce(so_far["found"], F.when(seen >= wanted, each["key"])).alias("found")
        )

    start = F.struct(F.lit(0).cast("long").alias("seen"), F.lit(None).cast("int").alias("found"))
    found = F.aggregate(F.array_sort(F.map_entries("buckets")), start, step, lambda end: end["found"])
    middle = F.least(F.pow(F.lit(BASE), found - 0.5), F.col("max"))
    return F.when(found == LEAST, 0.0).otherwise(middle)
