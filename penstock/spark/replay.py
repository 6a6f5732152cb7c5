"""Replay of archived messages, in their order and at their pace."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.asyncio import Redis

from penstock.base.encoding import encoded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

BATCH: Final = 1_000
"""Maximum number of messages of one LPUSH."""
BATCH_BYTES: Final = 2**20
"""An LPUSH gets no more messages once they have this size."""
PARTITION_BYTES: Final = 32 * 2**20
"""Most bytes of messages in a partition, which is in memory as a whole; more only if they came at the same time."""
PARTITION_ROWS: Final = 200_000
"""Most messages in a partition; more only if they came at the same time."""
FIRST_BITS: Final = 13
"""Binary digits of the number of intervals into which the time of all messages is divided to count them."""
BITS: Final = 8
"""The same for each interval that has too many for a partition, which is divided again."""
BRANCHES: Final = 1_000
"""Most branches of the expression that finds a message's partition; Java does not compile some thousands."""
SEARCHES: Final = 50
"""With more partitions, branches that search the rest one by one, about."""
REPLY_SECONDS: Final = 1
"""Longest time that an interrupted replay waits for the reply to an LPUSH."""


class Replayed(NamedTuple):
    at: float
    """Time of its registration (s since the epoch)."""
    message: bytes


@dataclass(frozen=True)
class Archived:
    """Counts of the archived messages of one namespace."""

    namespace: str
    registered: int
    kept: int
    """Messages with a payload."""
    bytes: int
    """Total size of the payloads."""
    first: int
    """Time of the first registration (µs since the epoch)."""
    last: int


def archived(registered: "DataFrame") -> list[Archived]:
    """Count the messages in ``registered``, which are events of that kind, by namespace."""
    from pyspark.sql import functions as F

    counted = registered.groupBy("namespace").agg(
        F.count("*").alias("registered"),
        F.count("message").alias("kept"),
        F.coalesce(F.sum(F.octet_length("message")), F.lit(0)).alias("bytes"),
        F.unix_micros(F.min("at")).alias("first"),
        F.unix_micros(F.max("at")).alias("last"),
    )
    return [Archived(**row.asDict()) for row in counted.sort("namespace").collect()]


def messages(registered: "DataFrame", available: Archived) -> Iterator[list[Replayed]]:
    """Yield the payloads of ``registered``, the oldest first, in lists of at most ``BATCH``."""
    from pyspark.sql import functions as F

    kept = registered.where("message is not null").select(F.unix_micros("at").alias("at"), "number", "message")
    rows = divided(kept, available).sortWithinPartitions("at", "number").drop("number")
    batch, size = list[Replayed](), 0
    for columns in _by_partition(rows):
        for at, message in zip(*(column.to_pylist() for column in columns.columns), strict=True):
            batch.append(Replayed(at / 1e6, message))
            size += len(message)
            if len(batch) == BATCH or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _by_partition(rows: "DataFrame") -> "Iterator[pa.RecordBatch]":
    """Read one partition after the other, as ``toLocalIterator`` does, but with Arrow.

    To pickle a message takes Java several times its size.
    """
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    spark: Any = rows.sparkSession
    schema = pa.schema([("at", pa.int64()), ("message", pa.binary())])
    java: Any = rows._jdf.toArrowBatchRdd(BATCH, "UTC", True, False).toJavaRDD()
    batches: RDD[bytes] = RDD(java, spark.sparkContext, NoOpSerializer())
    for data in batches.toLocalIterator(prefetchPartitions=True):
        yield pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def divided(kept: "DataFrame", available: Archived) -> "DataFrame":
    """Divide messages into partitions by their time ``at`` (µs), so that each has little enough to be read whole."""
    from pyspark.sql import functions as F

    if not _is_large(available.kept, available.bytes):
        return kept.repartition(1)
    sizes: dict[int, list[int]] = {}
    rows, shift = kept, max((available.last - available.first).bit_length() - FIRST_BITS, 0)
    while True:
        start = F.shiftleft(F.shiftright("at", shift), shift)
        counted = rows.groupBy(start).agg(F.count("*"), F.sum(F.octet_length("message"))).toArrow()
        sizes |= {begin: size for begin, *size in zip(*(column.to_pylist() for column in counted.columns), strict=True)}
        large = [begin for begin, size in sizes.items() if _is_large(*size)]
        if not (large and shift):
            break
        rows = kept.where(start.isin(large))
        for begin in large:
            del sizes[begin]
        shift = max(shift - BITS, 0)
    starts, count, size = list[int](), 0, 0
    for begin, (more, bytes) in sorted(sizes.items()):
        if count and _is_large(count + more, size + bytes):
            starts.append(begin)
            count = size = 0
        count, size = count + more, size + bytes
    at_end = len(starts) // SEARCHES if len(starts) > BRANCHES else 0
    return kept.repartitionById(len(starts) + 1, F.expr(_partition(starts, 0, at_end)))


def _is_large(count: int, size: int) -> bool:
    """Return whether ``count`` messages of ``size`` bytes together are too many for a partition."""
    return count > PARTITION_ROWS or size > PARTITION_BYTES


def _partition(starts: Sequence[int], first: int, most: int) -> str:
    """Return the expression of the partition that has ``at``: it halves ``starts`` until at most ``most`` are left.

    ``first``: the partition before the first of ``starts``.
    """
    if not starts:
        return str(first)
    if len(starts) <= most:
        return f"{first} + size(filter(array({', '.join(map(str, starts))}), start -> start <= at))"
    middle = len(starts) // 2
    before = _partition(starts[:middle], first, most)
    return f"if(at < {starts[middle]}, {before}, {_partition(starts[middle + 1 :], first + middle + 1, most)})"


class Pace:
    """Schedule of a replay, ``speed`` times as fast as the original, from the first message on; None is at once."""

    def __init__(
        self,
        speed: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._speed, self._clock, self._sleep = speed, clock, sleep
        self._begun = self._first = 0.0
        self._started = False
        self.behind = 0.0
        """Longest delay of a message (s)."""

    async def due(self, messages: Sequence[Replayed]) -> int:
        """Wait until the first of ``messages`` is due. Return how many of them are due then."""
        if self._speed is None:
            return len(messages)
        if not self._started:
            self._begun, self._first, self._started = self._clock(), messages[0].at, True
        when = self._begun + (messages[0].at - self._first) / self._speed
        while (wait := when - self._clock()) > 0:
            await self._sleep(wait)
        self.behind = max(self.behind, -wait)
        now = self._first + (self._clock() - self._begun) * self._speed
        return max(bisect_right(messages, now, key=lambda message: message.at), 1)


@dataclass
class Pushed:
    """Messages that the server has confirmed so far."""

    messages: int = 0
    bytes: int = 0


async def push(
    redis: "Redis",
    key: str,
    lists: Iterator[list[Replayed]],
    pace: Pace,
    pushed: Pushed,
    advance: Callable[[int], None],
) -> None:
    """Push each message to ``key`` when it is due. ``pushed`` is up to date also after an error or cancellation."""
    async for batch in _ahead(lists):
        rest = batch
        while rest:
            count = await pace.due(rest)
            sent = asyncio.create_task(_send(redis, key, rest[:count], pushed))
            try:
                await asyncio.shield(sent)
            except asyncio.CancelledError:
                await asyncio.wait({sent}, timeout=REPLY_SECONDS)
                raise
            advance(count)
            rest = rest[count:]


async def _send(redis: "Redis", key: str, batch: Sequence[Replayed], pushed: Pushed) -> None:
    """Push all of ``batch`` or none."""
    words: Any = [each.message for each in batch]
    await redis.lpush(encoded(key), *words)
    pushed.messages += len(batch)
    pushed.bytes += sum(map(len, words))


async def _ahead(lists: Iterator[list[Replayed]]) -> AsyncIterator[list[Replayed]]:
    """Yield each of ``lists`` while another thread reads the next one."""
    coming = asyncio.create_task(asyncio.to_thread(next, lists, None))
    while (batch := await coming) is not None:
        coming = asyncio.create_task(asyncio.to_thread(next, lists, None))
        yield batch
