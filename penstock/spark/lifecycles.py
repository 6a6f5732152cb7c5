"""Whole lives of messages, from registration to the end, put together by Spark from what was told of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.tracking.events import END_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FAILURES: Final = ("timeout", "failed", "queueTimeout")
"""Why an attempt ended without ``done``: the last of them is why the message died."""
UNKNOWN: Final = "unknown"
"""The reason where the archive does not have the event before."""
KNOWN: Final = ("registered", "delivered", "retry", *FAILURES, *END_EVENTS)


@dataclass(frozen=True)
class Message:
    """One that has ended; ``seconds`` are those of its whole life, ``at`` is its end (s since the epoch)."""

    id: str
    xid: str
    queue: str
    service: str
    attempts: int | None
    seconds: float
    at: float
    how: str
    """One of ``ENDS``."""


def ended(rows: "DataFrame", before: "DataFrame | None") -> "DataFrame":
    """The messages that have ended within ``rows``, which are events; ``before`` are those before them.

    Columns: ``namespace id xid queue service attempts how at reason began``; ``reason`` is why it died, null for those
    that did not, ``began`` when it was registered, null where nobody knows. An id that a server gives a second time, as
    an emptied one does, is another message.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    event, at = F.col("event"), F.col("at")
    # An entry's id begins with a time that never goes back; within a millisecond beginnings come first, ends last.
    time = F.substring_index("entry", "-", 1).try_cast("long")
    place = F.when(event == "registered", 0).when(event.isin(*END_EVENTS), 2).otherwise(1)
    life = Window.partitionBy("namespace", "id").orderBy(time, place).rowsBetween(Window.unboundedPreceding, 0)
    lives = (
        rows.where(event.isin(*KNOWN))
        .select(
            *("namespace", "id", "xid", "queue", "service", "at", "seconds", event.alias("how")),
            F.last("attempt", ignorenulls=True).over(life).alias("attempts"),
            F.last(_failure(), ignorenulls=True).over(life).alias("reason"),
            F.last(F.when(event == "registered", at), ignorenulls=True).over(life).alias("began"),
        )
        .where(F.col("how").isin(*END_EVENTS))
    )
    if before is not None:
        lives = _completed(lives, before)
    dead = F.col("how") == "dead"
    by_its_word = F.timestamp_micros(F.unix_micros(at) - F.round(F.col("seconds") * 1_000_000).cast("long"))
    return lives.withColumns(
        {
            "reason": F.when(dead, F.coalesce("reason", F.lit(UNKNOWN))),
            "began": F.coalesce("began", F.when(dead, by_its_word)),  # only `dead` tells of the whole life
        }
    ).drop("seconds")


def slowest(lives: "DataFrame", most: int) -> dict[str, list[Message]]:
    """By namespace, the ``most`` messages of ``ended`` that took the longest; ones whose beginning is unknown aside."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    micros = F.unix_micros("at") - F.unix_micros("began")
    place = F.row_number().over(Window.partitionBy("namespace").orderBy(F.desc("micros"), "at", "id"))
    first = lives.withColumn("micros", micros).where("micros is not null").withColumn("place", place)
    found: dict[str, list[Message]] = {}
    for row in first.where(F.col("place") <= most).withColumn("end", F.unix_micros("at")).sort("place").collect():
        names = {name: row[name] or "" for name in ("id", "xid", "queue", "service")}
        message = Message(
            **names, attempts=row.attempts, seconds=row.micros / 1_000_000, at=row.end / 1_000_000, how=row.how
        )
        found.setdefault(row.namespace, []).append(message)
    return found


def _completed(lives: "DataFrame", before: "DataFrame") -> "DataFrame":
    """What is missing of ``lives`` at their beginning, from the events before."""
    from pyspark.sql import functions as F

    event, at = F.col("event"), F.col("at")
    orphans = lives.where("began is null").select("namespace", "id").distinct()
    earlier = (
        before.where(event.isin("registered", *FAILURES))
        .join(orphans, ["namespace", "id"], "left_semi")
        .groupBy("namespace", "id")
        .agg(
            F.max(F.when(event == "registered", at)).alias("earlier"),
            F.max_by(_failure(), F.struct("at", "attempt")).alias("why"),
        )
    )
    return (
        lives.join(earlier, ["namespace", "id"], "left")
        .withColumns({"reason": F.coalesce("reason", "why"), "began": F.coalesce("began", "earlier")})
        .drop("earlier", "why")
    )


def _failure() -> "Column":
    """What an event says of why its message may die; another life begins without a reason."""
    from pyspark.sql import functions as F

    event = F.col("event")
    return F.when(event == "registered", UNKNOWN).when(event.isin(*FAILURES), event)
