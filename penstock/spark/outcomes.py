"""How messages fared, and whether those that were replayed fared as they had: message by message, by their xids."""

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

from penstock.accounting.snapshot import REFUSED_REASONS
from penstock.atomic import AtomicRead
from penstock.encoding import decoded as text
from penstock.encoding import encoded
from penstock.errors import DataLost
from penstock.keys import Keys
from penstock.spark.decode import SCHEMA, decoded
from penstock.tracking.events import FIRST_CHUNK, next_count
from penstock.tracking.policy import Policy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FATES: Final = ("dead", "expired", "done", "late", "open")
"""How a message may have ended, the one that counts first: what died is dead even if it was done later."""
NONE: Final = "none"
"""That of a message that was not registered at all, or of one that there was not before."""
COLUMNS: Final = ["number", "event", "id", "xid", "at"]
LOOK: Final = 0.1
"""Seconds between two looks at a namespace where nothing happens."""
SLACK: Final = 10
"""Seconds beyond what the policy allows a message."""
SHOWN: Final = 20
"""Most ids that are told of those that differ."""


@dataclass(frozen=True)
class Comparison:
    pairs: dict[tuple[str, str], int]
    """How many had the first fate and now have the second one."""
    ids: list[str]
    """Of those that differ, at most ``SHOWN``."""

    @property
    def differ(self) -> int:
        return sum(count for (before, now), count in self.pairs.items() if before != now)


class Shadow:
    """The events of a namespace from ``begin`` on, read as they come, so that trimming does not take them away."""

    def __init__(self, redis: "Redis", keys: Keys) -> None:
        self._redis, self._keys = redis, keys
        self._batches: list[pa.RecordBatch] = []
        self._after, self._number, self._dispatched, self._count = "-", 0, 0, FIRST_CHUNK

    async def begin(self) -> None:
        async with AtomicRead(self._redis) as snapshot:
            snapshot.xrevrange(encoded(self._keys.events), count=1)
            snapshot.hget(encoded(self._keys.metric("events")), "count")
            _count_dispatched(snapshot, self._keys)
            newest, number, *dispatched = await snapshot.execute()
        self._after = f"({text(newest[0][0])}" if newest else "-"
        self._number, self._dispatched = int(number or 0), _dispatched(dispatched)

    async def follow(self, over: asyncio.Event) -> None:
        """Read on until it is ``over``."""
        while not over.is_set():
            if not await self.read():
                await asyncio.sleep(LOOK)

    async def read(self) -> bool:
        """The next page; whether there was one. Raises ``DataLost`` where events are gone."""
        page: Any = await self._redis.xrange(encoded(self._keys.events), self._after, "+", self._count)
        if not page:
            return False
        self._after, self._count = f"({text(page[-1][0])}", next_count(page)
        entries = [(name, [word for pair in fields.items() for word in pair]) for name, fields in page]
        for batch in decoded(self._keys.namespace, entries):
            numbers = batch.column("number").drop_null()
            if len(numbers) and numbers[0].as_py() > self._number + 1:
                gone = f"events {self._number + 1} to {numbers[0].as_py() - 1} of {self._keys.events} are gone"
                raise DataLost(f"{gone}: they were trimmed before they were read; a larger eventCapacity keeps more")
            self._number = numbers[-1].as_py() if len(numbers) else self._number
            matters = pc.is_in(batch.column("event"), pa.array(["registered", *FATES[:-1]]))
            self._batches.append(batch.select(COLUMNS).filter(matters))
        return True

    async def ended(self, pushed: int, policy: Policy, clock: Callable[[], float] = time.monotonic) -> int:
        """Wait until all that was ``pushed`` has been taken and has ended; how many have not, when it gives up.

        It gives up when nothing has been taken, or all of it, for as long as the policy allows a message at most.
        """
        patience = policy.attempts * (policy.timeout + policy.backoff.longest(policy.attempts)) + SLACK
        waiting, end = pushed + 1, clock()
        while True:
            before = waiting
            waiting, under_way = await self._look(pushed)
            if waiting < before:
                end = clock() + patience
            if not waiting + under_way or clock() > end:
                return waiting + under_way
            await asyncio.sleep(LOOK)

    async def _look(self, pushed: int) -> tuple[int, int]:
        """How many of ``pushed`` wait to be dispatched, and how many messages are in flight or delayed."""
        async with AtomicRead(self._redis) as snapshot:
            snapshot.zcard(encoded(self._keys.deadlines))
            snapshot.zcard(encoded(self._keys.delayed))
            _count_dispatched(snapshot, self._keys)
            in_flight, delayed, *dispatched = await snapshot.execute()
        return max(pushed - (_dispatched(dispatched) - self._dispatched), 0), in_flight + delayed

    def events(self, spark: "SparkSession") -> "DataFrame":
        """What was read: ``number event id xid at``, of registrations and ends."""
        schema = pa.schema([SCHEMA.field(name) for name in COLUMNS])
        return spark.createDataFrame(pa.Table.from_batches(self._batches, schema))


def _count_dispatched(snapshot: AtomicRead, keys: Keys) -> None:
    """Ask for all that comes of a request when mdispatch settles it."""
    snapshot.hget(encoded(keys.metric("registered")), "count")
    snapshot.hget(encoded(keys.metric("untracked")), "count")
    snapshot.hmget(encoded(keys.metric("dead")), REFUSED_REASONS)


def _dispatched(replies: Sequence[Any]) -> int:
    registered, untracked, refused = replies
    return sum(int(count or 0) for count in (registered, untracked, *refused))


def replayed_as() -> "Column":
    """By which xid a message with ``xid`` and ``message`` is known when it is pushed again.

    That is another one where the xid is the SHA-1 of the message as it was before it was masked.
    """
    from pyspark.sql import functions as F

    is_sha1 = F.col("xid").rlike("^[0-9a-f]{40}$") & ~F.contains("message", F.encode("xid", "UTF-8"))
    return F.when(is_sha1, F.sha1("message")).otherwise(F.col("xid"))


def fates(events: "DataFrame", key: "Column") -> "DataFrame":
    """A row, ``key fate``, for every registration in ``events`` whose ``key`` is not null; ``fate`` as in ``FATES``.

    An id that a server gives a second time, as an emptied one does, is another message.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    event = F.col("event")
    registered = event == "registered"
    rank = F.lit(len(FATES) - 1)
    for place, fate in reversed(list(enumerate(FATES[:-1]))):
        rank = F.when(event == fate, place).otherwise(rank)
    rows = events.where(event.isin("registered", *FATES[:-1])).select(
        "id",
        "at",
        "number",
        F.when(registered, key).alias("key"),
        registered.cast("int").alias("one"),
        rank.alias("rank"),
    )
    life = F.sum("one").over(Window.partitionBy("id").orderBy("at", "number"))
    lives = (
        rows.withColumn("life", life).groupBy("id", "life").agg(F.max("key").alias("key"), F.min("rank").alias("rank"))
    )
    return lives.where("key is not null").select(
        "key", F.element_at(F.array(*map(F.lit, FATES)), F.col("rank") + 1).alias("fate")
    )


def compare(before: "DataFrame", now: "DataFrame") -> Comparison:
    """Rows of ``fates``: those of messages before, and of them when they were replayed; others in ``now`` are left out.

    Where a key has several messages, as many as can are taken to have had the same fate.
    """
    from pyspark.sql import functions as F

    def counted(rows: "DataFrame", side: str) -> "DataFrame":
        return rows.groupBy("key").agg(*(F.count_if(F.col("fate") == fate).alias(f"{side} {fate}") for fate in FATES))

    sides = [[f"{side} {fate}" for fate in FATES] for side in ("before", "now")]
    both = counted(before, "before").join(counted(now, "now"), "key", "left").fillna(0).persist()
    try:
        patterns = both.groupBy(*sides[0], *sides[1]).agg(F.count("*").alias("keys")).collect()
        unlike = reduce(or_, (F.col(one) != F.col(other) for one, other in zip(*sides, strict=True)))
        ids = [row.key for row in both.where(unlike).sort("key").limit(SHOWN).collect()]
    finally:
        both.unpersist()
    pairs = Counter[tuple[str, str]]()
    for row in patterns:
        for pair, count in _paired([row[name] for name in sides[0]], [row[name] for name in sides[1]]).items():
            pairs[pair] += count * row["keys"]
    return Comparison(dict(pairs), ids)


def _paired(before: Sequence[int], now: Sequence[int]) -> Counter[tuple[str, str]]:
    """How often which fate became which, of messages that cannot be told apart."""
    pairs = Counter({(fate, fate): min(each) for fate, *each in zip(FATES, before, now, strict=True) if min(each)})
    return pairs + Counter(zip_longest(_beyond(before, now), _beyond(now, before), fillvalue=NONE))


def _beyond(these: Sequence[int], those: Sequence[int]) -> Iterator[str]:
    """Fates of which there are more in ``these``, as often."""
    for fate, mine, others in zip(FATES, these, those, strict=True):
        yield from repeat(fate, mine - others)
