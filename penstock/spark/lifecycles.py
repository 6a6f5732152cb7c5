"""Lifecycles of messages, from registration to the end, computed by Spark from their events."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.tracking.events import END_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FAILURES: Final = ("timeout", "failed", "queueTimeout")
"""Events that end an attempt without ``done``. The last one is the reason why the message died."""
UNKNOWN: Final = "unknown"
"""The reason if the archive lacks that event."""
LIFECYCLE_EVENTS: Final = ("registered", "delivered", "retry", *FAILURES, *END_EVENTS)


@dataclass(frozen=True)
class Lifecycle:
    """A message that has ended: ``seconds`` from registration to the end, which was ``at`` (s since the epoch)."""

    id: str
    xid: str
    queue: str
    service: str
    attempts: int | None
    seconds: float
    at: float
    how: str
    """The outcome, one of ``END_EVENTS``."""


def ended_messages(rows: "DataFrame", before: "DataFrame | None") -> "DataFrame":
    """Return the messages that ended within the events ``rows``; ``before`` are earlier events.

    Columns: ``namespace id xid queue service attempts outcome at reason began``. ``reason`` is why the message died,
    else null. ``began`` is the time of registration, null if unknown. An id that is registered again, as after
    FLUSHALL, is another message.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    event, at = F.col("event"), F.col("at")
    # An entry's id begins with a time that never goes back; within a millisecond registrations come first, ends last.
    time = F.substring_index("entry", "-", 1).try_cast("long")
    rank = F.when(event == "registered", 0).when(event.isin(*END_EVENTS), 2).otherwise(1)
    so_far = Window.partitionBy("namespace", "id").orderBy(time, rank).rowsBetween(Window.unboundedPreceding, 0)
    messages = (
        rows.where(event.isin(*LIFECYCLE_EVENTS))
        .select(
            *("namespace", "id", "xid", "queue", "service", "at", "seconds", event.alias("outcome")),
            F.last("attempt", ignorenulls=True).over(so_far).alias("attempts"),
            F.last(_failure(), ignorenulls=True).over(so_far).alias("reason"),
            F.last(F.when(event == "registered", at), ignorenulls=True).over(so_far).alias("began"),
        )
        .where(F.col("outcome").isin(*END_EVENTS))
    )
    if before is not None:
        messages = _completed(messages, before)
    dead = F.col("outcome") == "dead"
    by_duration = F.timestamp_micros(F.unix_micros(at) - F.round(F.col("seconds") * 1_000_000).cast("long"))
    return messages.withColumns(
        {
            "reason": F.when(dead, F.coalesce("reason", F.lit(UNKNOWN))),
            "began": F.coalesce("began", F.when(dead, by_duration)),  # of the ends, only `dead` measures from there
        }
    ).drop("seconds")


def slowest(messages: "DataFrame", most: int) -> dict[str, list[Lifecycle]]:
    """Return, by namespace, the ``most`` slowest of ``ended_messages``, without those whose beginning is unknown."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    micros = F.unix_micros("at") - F.unix_micros("began")
    rank = F.row_number().over(Window.partitionBy("namespace").orderBy(F.desc("micros"), "at", "id"))
    first = messages.withColumn("micros", micros).where("micros is not null").withColumn("rank", rank)
    found: dict[str, list[Lifecycle]] = {}
    for row in first.where(F.col("rank") <= most).withColumn("end", F.unix_micros("at")).sort("rank").collect():
        names = {name: row[name] or "" for name in ("id", "xid", "queue", "service")}
        message = Lifecycle(
            **names, attempts=row.attempts, seconds=row.micros / 1_000_000, at=row.end / 1_000_000, how=row.outcome
        )
        found.setdefault(row.namespace, []).append(message)
    return found


def _completed(messages: "DataFrame", before: "DataFrame") -> "DataFrame":
    """Fill in ``began`` and ``reason`` of ``messages`` from the events ``before``."""
    from pyspark.sql import functions as F

    event, at = F.col("event"), F.col("at")
    orphans = messages.where("began is null").select("namespace", "id").distinct()
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
        messages.join(earlier, ["namespace", "id"], "left")
        .withColumns({"reason": F.coalesce("reason", "why"), "began": F.coalesce("began", "earlier")})
        .drop("earlier", "why")
    )


def _failure() -> "Column":
    """Return the reason for death that an event gives; a registration resets it to ``UNKNOWN``."""
    from pyspark.sql import functions as F

    event = F.col("event")
    return F.when(event == "registered", UNKNOWN).when(event.isin(*FAILURES), event)
