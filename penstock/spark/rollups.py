"""Roll-ups of events: numbers of a window of time that add up to those of a larger window.

The same functions compute them from a micro-batch and from a whole archive. Times are counted in exponential buckets:
bucket ``k`` counts times above ``BASE ** (k - 1)`` up to ``BASE ** k`` seconds. A percentile is the geometric middle of
its bucket, so it is at most 5 % off. Buckets add up exactly, and sums are of whole microseconds.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

SIZES: Final = {"minute": 60, "hour": 3_600, "day": 86_400}
"""Windows, by name, in seconds."""
BASE: Final = 1.1
LEAST: Final = -145
"""The bucket of times up to a microsecond, which count as 0."""
MAX_SECONDS: Final = 1e9
"""A longer time counts as this one in sums."""
MAX_LONG: Final = 2**63 - 1024
"""The largest long that is a float, too."""
SHARES: Final = 11
"""Bins of a histogram: ten tenths of the time allowed, and times that reached it."""
MINUTE: Final = 60_000_000
"""Microseconds."""
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
        _total(F.coalesce(_micros(seconds), F.lit(0))).alias("micros"),
        F.max(seconds).alias("max"),
        F.sum("attempt").alias("attempts"),
    )
    count = F.col("count")
    timed = F.when(F.col("bucket").isNotNull(), count).otherwise(0)
    by_bucket = cells.groupBy(*KEYS, "bucket").agg(
        F.sum(count).alias("count"),
        F.sum(timed).alias("timed"),
        _total(F.col("micros")).alias("micros"),
        F.max("max").alias("max"),
        F.sum("attempts").alias("attempts"),
        *(F.sum(F.when(F.col("share") == share, count).otherwise(0)).alias(f"h{share}") for share in range(SHARES)),
    )
    pair = F.when(F.col("bucket").isNotNull(), F.struct("bucket", "count"))
    return by_bucket.groupBy(*KEYS).agg(
        F.sum("count").alias("count"),
        F.sum("timed").alias("timed"),
        _total(F.col("micros")).alias("micros"),
        F.max("max").alias("max"),
        F.array(*(F.sum(f"h{share}") for share in range(SHARES))).alias("histogram"),
        F.map_from_entries(F.collect_list(pair)).alias("buckets"),
        F.coalesce(F.sum("attempts"), F.lit(0)).alias("attempts"),
        F.sum(F.when(event == "timeout", count).otherwise(0)).alias("timeouts"),
        F.sum(F.when(event == "dead", count).otherwise(0)).alias("dead"),
    )


def cells(events: "pa.Table") -> "pa.Table":
    """Count events as ``minutes`` does first, but with Arrow: by ``KEYS`` and by bucket and share of the time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    seconds, timeout, most = events["seconds"], events["timeout"], float(SHARES - 1)
    logarithm = pc.divide(pc.ln(pc.max_element_wise(seconds, BASE**LEAST)), math.log(BASE))
    bucket = pc.if_else(pc.greater(seconds, BASE**LEAST), pc.ceil(logarithm), float(LEAST))
    timeout = pc.if_else(pc.equal(timeout, 0.0), None, timeout)
    tenths = _between(-1.0, pc.add(pc.divide(pc.multiply(seconds, most), timeout), 1e-9), most)
    micros = pc.multiply(_between(-MAX_SECONDS, seconds, MAX_SECONDS), 1e6)
    at = events["at"].cast(pa.int64())
    columns = {
        "start": pc.multiply(pc.divide(at, MINUTE), MINUTE).cast(pa.timestamp("us", tz="UTC")),
        **{name: events[name] for name in KEYS[1:]},
        "bucket": bucket.cast(pa.int32()),
        "share": pc.floor(tenths).cast(pa.int32()),
        "count": pa.repeat(pa.scalar(1, pa.int64()), len(at)),
        # Whole numbers, exact up to 2**53, which end at infinity.
        "micros": pc.fill_null(pc.round(micros, round_mode="half_towards_infinity"), 0.0),
        "max": seconds,
        "attempts": events["attempt"].cast(pa.int64()),
    }
    return _summed(pa.table(columns), "bucket", "share")


def added_up(cells: "pa.Table") -> "pa.Table":
    """Return the rows of ``minutes`` from those of ``cells``, of any number of tasks."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = cells["count"]
    more = {"timed": pc.if_else(pc.is_valid(cells["bucket"]), count, 0)}
    for share in range(SHARES):
        more[f"h{share}"] = pc.if_else(pc.fill_null(pc.equal(cells["share"], share), False), count, 0)
    for name, column in more.items():
        cells = cells.append_column(name, column)
    several = _summed(cells, "bucket")
    rows = _summed(several.append_column("each", several["count"]), lists=("bucket", "each"))
    buckets, counts = (rows[name].combine_chunks() for name in ("bucket_list", "each_list"))
    has_time = buckets.flatten().is_valid()
    ends = np.concatenate([[0], np.cumsum(has_time)])[buckets.offsets.to_numpy()]
    histogram = np.column_stack([rows[f"h{share}"].to_numpy() for share in range(SHARES)])
    found = {name: rows[name] for name in (*KEYS, "count", "timed")}
    found |= {
        "micros": _between(-float(MAX_LONG), rows["micros"], float(MAX_LONG)).cast(pa.int64()),
        "max": rows["max"],
        "histogram": pa.ListArray.from_arrays(
            np.arange(0, histogram.size + 1, SHARES, dtype=np.int32), histogram.ravel()
        ),
        "buckets": pa.MapArray.from_arrays(
            ends.astype(np.int32), buckets.flatten().filter(has_time), counts.flatten().filter(has_time)
        ),
        "attempts": pc.fill_null(rows["attempts"], 0),
    }
    for name, event in (("timeouts", "timeout"), ("dead", "dead")):
        found[name] = pc.if_else(pc.equal(rows["event"], event), rows["count"], 0)
    return pa.table(found)


def _summed(rows: "pa.Table", *more: str, lists: Sequence[str] = ()) -> "pa.Table":
    """Add up ``rows`` by ``KEYS`` and ``more``. Of ``lists`` there are lists, called ``bucket_list`` and the like."""
    keys = [*KEYS, *more]
    left = [name for name in rows.column_names if name not in {*keys, *lists, "bucket", "share"}]
    numbers = [(name, "max" if name == "max" else "sum") for name in left]
    found = rows.group_by(keys, use_threads=False).aggregate([*numbers, *((name, "list") for name in lists)])
    return found.rename_columns({f"{name}_{kind}": name for name, kind in numbers})


def _between(least: float, numbers: Any, most: float) -> Any:
    import pyarrow.compute as pc

    return pc.max_element_wise(pc.min_element_wise(numbers, most, skip_nulls=False), least, skip_nulls=False)


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
        _total(F.col("micros")).alias("micros"),
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

    most = F.lit(float(SHARES - 1))
    tenths = F.try_divide(seconds * most, timeout) + 1e-9  # 0.03 of 0.1 is 30 %, in binary fractions a hair less
    return F.when(tenths.isNotNull(), F.floor(F.greatest(F.least(tenths, most), F.lit(-1.0)))).cast("int")


def _micros(seconds: "Column") -> "Column":
    from pyspark.sql import functions as F

    bounded = F.greatest(F.least(seconds, F.lit(MAX_SECONDS)), F.lit(-MAX_SECONDS))
    return F.when(seconds.isNotNull(), F.round(bounded * 1_000_000)).cast("long")


def _total(numbers: "Column") -> "Column":
    """Return the sum, or if it is no long, the largest or least number."""
    from pyspark.sql import functions as F

    most = F.signum(F.sum(numbers.cast("double"))) * MAX_LONG
    return F.coalesce(F.try_sum(numbers), most.cast("long"))


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
