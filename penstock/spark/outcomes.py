"""Outcomes of messages, and a comparison of replayed messages with their originals by correlation id (xid)."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import repeat, zip_longest
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from redis.asyncio import Redis

from penstock.base.encoding import decoded as text
from penstock.base.encoding import encoded
from penstock.base.errors import DataLost
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicRead
from penstock.core.metrics import REFUSED_REASONS
from penstock.spark.decode import SCHEMA, decode_entries
from penstock.tracking.events import FIRST_CHUNK, next_count
from penstock.tracking.policy import Policy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OUTCOMES: Final = ("dead", "expired", "done", "late", "open")
"""In order of precedence: a dead message stays dead even if it is done later."""
NO_OUTCOME: Final = "none"
"""Stands for a message that exists on the other side of a comparison only."""
EVENT_COLUMNS: Final = ["number", "event", "id", "xid", "at"]
POLL_SECONDS: Final = 0.1
GRACE_SECONDS: Final = 10
"""Added to the longest time that the policy allows a message."""
MAX_IDS: Final = 20


@dataclass(frozen=True)
class Comparison:
    pairs: dict[tuple[str, str], int]
    """Number of messages by their outcome before and their outcome now."""
    ids: list[str]
    """The first ``MAX_IDS`` keys whose outcomes differ."""

    @property
    def differ(self) -> int:
        return sum(count for (before, now), count in self.pairs.items() if before != now)


class EventRecorder:
    """Reads the events of a namespace while they come, from ``begin`` on, before the stream is trimmed."""

    def __init__(self, redis: "Redis", keys: Keys) -> None:
        self._redis, self._keys = redis, keys
        self._batches: list[pa.RecordBatch] = []
        self._after, self._number, self._dispatched, self._count = "-", 0, 0, FIRST_CHUNK

    async def begin(self) -> None:
        """Note the newest event and the counters; only later events are recorded."""
        async with AtomicRead(self._redis) as snapshot:
            snapshot.xrevrange(encoded(self._keys.events), count=1)
            snapshot.hget(encoded(self._keys.metric("events")), "count")
            _count_dispatched(snapshot, self._keys)
            newest, number, *dispatched = await snapshot.execute()
        self._after = f"({text(newest[0][0])}" if newest else "-"
        self._number, self._dispatched = int(number or 0), _dispatched(dispatched)

    async def follow(self, over: asyncio.Event) -> None:
        """Record events until ``over`` is set."""
        while not over.is_set():
            if not await self.read_page():
                await asyncio.sleep(POLL_SECONDS)

    async def read_page(self) -> bool:
        """Record the next page of events. Return False if none is new. Raise ``DataLost`` if events were trimmed."""
        page: Any = await self._redis.xrange(encoded(self._keys.events), self._after, "+", self._count)
        if not page:
            return False
        self._after, self._count = f"({text(page[-1][0])}", next_count(page)
        entries = [(name, [word for pair in fields.items() for word in pair]) for name, fields in page]
        for batch in decode_entries(self._keys.namespace, entries):
            numbers = batch.column("number").drop_null()
            if len(numbers) and numbers[0].as_py() > self._number + 1:
                gone = f"events {self._number + 1} to {numbers[0].as_py() - 1} of {self._keys.events} are gone"
                raise DataLost(f"{gone}: they were trimmed before they were read; a larger eventCapacity keeps more")
            self._number = numbers[-1].as_py() if len(numbers) else self._number
            matters = pc.is_in(batch.column("event"), pa.array(["registered", *OUTCOMES[:-1]]))
            self._batches.append(batch.select(EVENT_COLUMNS).filter(matters))
        return True

    async def wait_until_ended(self, pushed: int, policy: Policy, clock: Callable[[], float] = time.monotonic) -> int:
        """Wait until all ``pushed`` messages have ended. Return the number of unfinished messages after a timeout.

        The timeout is the longest time that ``policy`` allows a message. It starts anew whenever a message is taken.
        """
        patience = policy.attempts * (policy.timeout + policy.backoff.longest_delay(policy.attempts)) + GRACE_SECONDS
        waiting, end = pushed + 1, clock()
        while True:
            before = waiting
            waiting, under_way = await self._unfinished(pushed)
            if waiting < before:
                end = clock() + patience
            if not waiting + under_way or clock() > end:
                return waiting + under_way
            await asyncio.sleep(POLL_SECONDS)

    async def _unfinished(self, pushed: int) -> tuple[int, int]:
        """Return how many of ``pushed`` are not dispatched yet, and how many messages are in flight or delayed."""
        async with AtomicRead(self._redis) as snapshot:
            snapshot.zcard(encoded(self._keys.deadlines))
            snapshot.zcard(encoded(self._keys.delayed))
            _count_dispatched(snapshot, self._keys)
            in_flight, delayed, *dispatched = await snapshot.execute()
        return max(pushed - (_dispatched(dispatched) - self._dispatched), 0), in_flight + delayed

    def events(self, spark: "SparkSession") -> "DataFrame":
        """Return the recorded registrations and ends, with ``EVENT_COLUMNS``."""
        schema = pa.schema([SCHEMA.field(name) for name in EVENT_COLUMNS])
        return spark.createDataFrame(pa.Table.from_batches(self._batches, schema))


def _count_dispatched(snapshot: AtomicRead, keys: Keys) -> None:
    """Ask for the counters of everything that may become of a request when mdispatch settles it."""
    snapshot.hget(encoded(keys.metric("registered")), "count")
    snapshot.hget(encoded(keys.metric("untracked")), "count")
    snapshot.hget(encoded(keys.metric("dropped")), "count")
    snapshot.hmget(encoded(keys.metric("dead")), REFUSED_REASONS)


def _dispatched(replies: Sequence[Any]) -> int:
    *counts, refused = replies
    return sum(int(count or 0) for count in (*counts, *refused))


def replayed_as() -> "Column":
    """Return the xid that the archived ``message`` gets when it is pushed again.

    It differs from ``xid`` if that is the SHA-1 of the message before it was masked.
    """
    from pyspark.sql import functions as F

    is_sha1 = F.col("xid").rlike("^[0-9a-f]{40}$") & ~F.contains("message", F.encode("xid", "UTF-8"))
    return F.when(is_sha1, F.sha1("message")).otherwise(F.col("xid"))


def outcomes_by_key(events: "DataFrame", key: "Column") -> "DataFrame":
    """Return a row ``key outcome`` for every registration in ``events`` whose ``key`` is not null.

    ``outcome`` is one of ``OUTCOMES``. An id that is registered again, as after FLUSHALL, is another message.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    event = F.col("event")
    registered = event == "registered"
    rank = F.lit(len(OUTCOMES) - 1)
    for index, outcome in reversed(list(enumerate(OUTCOMES[:-1]))):
        rank = F.when(event == outcome, index).otherwise(rank)
    rows = events.where(event.isin("registered", *OUTCOMES[:-1])).select(
        "id",
        "at",
        "number",
        F.when(registered, key).alias("key"),
        registered.cast("int").alias("one"),
        rank.alias("rank"),
    )
    lifecycle = F.sum("one").over(Window.partitionBy("id").orderBy("at", "number"))
    messages = (
        rows.withColumn("lifecycle", lifecycle)
        .groupBy("id", "lifecycle")
        .agg(F.max("key").alias("key"), F.min("rank").alias("rank"))
    )
    return messages.where("key is not null").select(
        "key", F.element_at(F.array(*map(F.lit, OUTCOMES)), F.col("rank") + 1).alias("outcome")
    )


def compare(before: "DataFrame", now: "DataFrame") -> Comparison:
    """Compare the outcomes ``before`` with those of the replay, ``now``, both from ``outcomes_by_key``.

    Keys in ``now`` alone are ignored. If several messages share a key, as many as possible are paired as equal.
    """
    from pyspark.sql import functions as F

    def counted(rows: "DataFrame", side: str) -> "DataFrame":
        counts = (F.count_if(F.col("outcome") == outcome).alias(f"{side} {outcome}") for outcome in OUTCOMES)
        return rows.groupBy("key").agg(*counts)

    sides = [[f"{side} {outcome}" for outcome in OUTCOMES] for side in ("before", "now")]
    both = counted(before, "before").join(counted(now, "now"), "key", "left").fillna(0).persist()
    try:
        patterns = both.groupBy(*sides[0], *sides[1]).agg(F.count("*").alias("keys")).collect()
        differ = reduce(or_, (F.col(one) != F.col(other) for one, other in zip(*sides, strict=True)))
        ids = [row.key for row in both.where(differ).sort("key").limit(MAX_IDS).collect()]
    finally:
        both.unpersist()
    pairs = Counter[tuple[str, str]]()
    for row in patterns:
        for pair, count in _paired([row[name] for name in sides[0]], [row[name] for name in sides[1]]).items():
            pairs[pair] += count * row["keys"]
    return Comparison(dict(pairs), ids)


def _paired(before: Sequence[int], now: Sequence[int]) -> Counter[tuple[str, str]]:
    """Return the number of messages by their outcomes before and now, for messages that share a key."""
    pairs = Counter({(name, name): min(each) for name, *each in zip(OUTCOMES, before, now, strict=True) if min(each)})
    return pairs + Counter(zip_longest(_surplus(before, now), _surplus(now, before), fillvalue=NO_OUTCOME))


def _surplus(these: Sequence[int], those: Sequence[int]) -> Iterator[str]:
    """Yield each outcome as often as ``these`` have more of it than ``those``."""
    for outcome, mine, others in zip(OUTCOMES, these, those, strict=True):
        yield from repeat(outcome, mine - others)
