"""Replay of archived messages, in their order and at their pace."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.asyncio import Redis

from penstock.encoding import encoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH: Final = 1_000
"""Maximum number of messages of one LPUSH."""
BATCH_BYTES: Final = 2**20
"""An LPUSH gets no more messages once they have this size."""
PARTITION_BYTES: Final = 32 * 2**20
"""Bytes of messages in a partition that Spark sorts, about."""
PARTITION_ROWS: Final = 200_000
"""Messages in such a partition, about."""
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


def archived(registered: "DataFrame") -> list[Archived]:
    """Count the messages in ``registered``, which are events of that kind, by namespace."""
    from pyspark.sql import functions as F

    counted = registered.groupBy("namespace").agg(
        F.count("*").alias("registered"),
        F.count("message").alias("kept"),
        F.coalesce(F.sum(F.octet_length("message")), F.lit(0)).alias("bytes"),
    )
    return [Archived(**row.asDict()) for row in counted.sort("namespace").collect()]


def messages(registered: "DataFrame", available: Archived) -> Iterator[list[Replayed]]:
    """Yield the payloads of ``registered``, the oldest first, in lists of at most ``BATCH``."""
    from pyspark.sql import functions as F

    parts = available.bytes // PARTITION_BYTES + available.kept // PARTITION_ROWS + 1
    kept = registered.where("message is not null").select(F.unix_micros("at").alias("at"), "number", "message")
    rows = kept.repartitionByRange(parts, "at", "number").sortWithinPartitions("at", "number").drop("number")
    batch, size = list[Replayed](), 0
    for row in rows.toLocalIterator(prefetchPartitions=True):
        batch.append(Replayed(row.at / 1e6, bytes(row.message)))
        size += len(row.message)
        if len(batch) == BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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
