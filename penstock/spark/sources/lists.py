"""Lists as a source: in batch they stay as they are, a query takes its messages away.

A query takes the messages of a micro-batch to a segment, a list of their own, which stays as it is until Spark has
committed the batch; so the batch is the same whenever it is read again. Keys: ``<key>:spark:<name>:<number>`` is a
segment, ``<key>:spark:<name>`` the state hash of ``fix.lua``.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from redis.exceptions import ResponseError

from penstock.encoding import decoded, encoded
from penstock.errors import DataLost, PenstockError
from penstock.spark.options import Connecting, Options, exchange, run, script
from penstock.spark.staging import BYTES, KEYS, PAGE, checked, chunks

FIX, FINISH = script("fix"), script("finish")
OPTIONS: Final = frozenset(
    {"url", "key", "name", "text", "partitions", "maxMessagesPerTrigger", "maxBytesPerTrigger", "failOnDataLoss"}
)
FIRST: Final = 64
"""Messages of the first page, when nobody knows how large they are."""


@dataclass(frozen=True)
class Span(InputPartition):
    """What one task reads: ``count`` messages of ``key``, the oldest of which has ``first`` older ones behind it."""

    key: bytes
    first: int
    count: int
    position: int
    """That of the first one in the column."""


class _Reader(Connecting):
    """What both kinds of reading have in common."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = Options("redis-list", given, OPTIONS)
        super().__init__(options.url())
        self._key = encoded(options.text("key"))
        self._text = options.truth("text", False)
        self._parts = options.whole("partitions", 1, most=1_000)
        self._name = options.text("name", "stream")
        if not self._name or ":" in self._name:
            raise options.wrong("name", f"{self._name!r}: expected a word without a colon")
        self._most = options.whole("maxMessagesPerTrigger", 10_000)
        self._bytes = options.whole("maxBytesPerTrigger", 64 * 2**20)
        self._fails = options.truth("failOnDataLoss", True)

    def lengths(self, keys: Sequence[bytes]) -> list[int]:
        replies = exchange(self.redis, [("LLEN", key) for key in keys])
        return [int(checked(self.redis, reply, key)) for reply, key in zip(replies, keys, strict=True)]

    def spans(self, key: bytes, length: int, position: int = 0) -> list[Span]:
        """About equal parts, the oldest messages first."""
        cuts = [length * part // self._parts for part in range(self._parts + 1)]
        parts = pairwise(cuts)
        return [Span(key, first, end - first, position + first) for first, end in parts if end > first]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Its messages, oldest first; fewer where they are not there any more."""
        done, page = 0, FIRST
        while done < span.count:
            count = min(page, span.count - done)
            newest, oldest = -span.first - done - count, -span.first - done - 1
            try:
                messages = self.redis.lrange(span.key, newest, oldest)
            except ResponseError as error:
                raise checked(self.redis, error, span.key) from None
            if messages:
                yield self._columns(messages[::-1], span, done)
            done += len(messages)
            if len(messages) < count:
                self._end_early(span, done)
                return
            page = max(1, min(PAGE, BYTES * count // (sum(map(len, messages)) + 1)))

    def _columns(self, messages: list[bytes], span: Span, done: int) -> pa.RecordBatch:
        values = pa.array(messages, pa.binary())
        if self._text:
            values = _texts(values, messages, span, done)
        first = span.position + done
        positions = pa.array(range(first, first + len(messages)), pa.int64())
        return pa.RecordBatch.from_arrays([values, positions], ["value", "position"])

    def _end_early(self, span: Span, done: int) -> None:
        """Nothing to do: whoever else takes messages of the list may have them."""


class BatchReader(_Reader, DataSourceReader):
    """What is there when the job is planned; it stays there."""

    def partitions(self) -> Sequence[InputPartition]:
        (length,) = self.lengths([self._key])
        return self.spans(self._key, length) or [Span(self._key, 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        return super().read(partition)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are ``{"sequence": n}``, the number of a segment, from 1 on."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self._state = b"%b:spark:%b" % (self._key, encoded(self._name))
        self._left: int | None = None
        """How many messages may still be taken, where only those that waited at the start are."""

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        (self._left,) = self.lengths([self._key])

    def initialOffset(self) -> dict[str, int]:
        """The end of what is finished: a query that lost its checkpoint goes on with the segments that are left."""
        return {"sequence": self._done() or 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        number = start["sequence"] + 1
        rows: int | None = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size: int | None = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._bytes if rows else None
        if self._left is not None:
            rows = self._left if rows is None else min(rows, self._left)
        fixed = run(
            self.redis,
            FIX,
            source=self._key,
            segment=self._segment(number),
            state=self._state,
            number=number,
            batch="" if rows is None else rows,
            bytes="" if size is None else size,
        )
        if fixed is None:
            self._lost(number)
            return {"sequence": max(number, self._done() or 0)}
        there, moved = fixed
        if self._left is not None:
            self._left -= moved
        return {"sequence": number if there else start["sequence"]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        numbers = range(start["sequence"] + 1, end["sequence"] + 1)
        spans: list[Span] = []
        position = 0
        for some in chunks(numbers, KEYS):
            for number, length in zip(some, self.lengths([self._segment(each) for each in some]), strict=True):
                if not length:
                    self._lost(number)
                spans += self.spans(self._segment(number), length, position)
                position += length
        return spans

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        return super().read(partition)

    def commit(self, end: dict[str, int]) -> None:
        last = end["sequence"]
        done = self._done()
        for numbers in chunks(range(last if done is None else done + 1, last + 1), KEYS):
            segments = [self._segment(number) for number in numbers]
            run(self.redis, FINISH, state=self._state, segments=segments, number=numbers[-1])

    def _segment(self, number: int) -> bytes:
        return b"%b:%d" % (self._state, number)

    def _done(self) -> int | None:
        (reply,) = exchange(self.redis, [("HGET", self._state, "done")])
        found = checked(self.redis, reply, self._state, "hash")
        return None if found is None else int(found)

    def _end_early(self, span: Span, done: int) -> None:
        self._lost(int(span.key.rpartition(b":")[2]))

    def _lost(self, number: int) -> None:
        """Raises ``DataLost``, or tells the log where the user wants to go on."""
        state = decoded(self._state)
        told = (
            f"redis-list: {decoded(self._segment(number))} is gone or incomplete: it held messages of "
            f"{decoded(self._key)} that the query with the option name={self._name} had taken. Either the server lost "
            f"data, or another query has that name, or the checkpoint is older than what was finished ({state} says "
            f"{self._done()})"
        )
        if self._fails:
            raise DataLost(f"{told}. Restore the server's data; or go on without them: failOnDataLoss=false")
        logging.getLogger(__name__).warning("%s; going on without them", told)


def _texts(values: Any, messages: list[bytes], span: Span, done: int) -> Any:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        for place, message in enumerate(messages):
            try:
                message.decode()
            except UnicodeDecodeError as error:
                position = span.position + done + place
                problem = f"redis-list: {decoded(span.key)}: the message at position {position} is no UTF-8: {error}"
                raise PenstockError(f"{problem}. Read it as binary, without text=true") from None
        raise
