"""Source for lists: a batch job leaves the list as it is, a streaming query takes its messages.

A query moves the messages of a micro-batch to a segment, a list of their own, which does not change until Spark has
committed the batch. So a batch that is read again is the same. Keys: ``<key>:spark:<name>:<number>`` is a
segment, ``<key>:spark:<name>`` the state hash of ``fix.lua``.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from redis.exceptions import ResponseError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import DataLost, PenstockError
from penstock.spark.cluster import beside
from penstock.spark.options import LazyConnection, Options, exchange, run, script
from penstock.spark.staging import MAX_KEYS, PAGE_BYTES, PAGE_ROWS, checked, chunks

FIX, FINISH = script("fix"), script("finish")
OPTIONS: Final = frozenset(
    {
        "url",
        "key",
        "name",
        "text",
        "partitions",
        "minPartitions",
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "failOnDataLoss",
    }
)
FIRST: Final = 64
"""Messages of the first page, before their size is known."""


@dataclass(frozen=True)
class Span(InputPartition):
    """The messages that one task reads: ``count`` of ``key``, after the ``first`` oldest ones."""

    key: bytes
    first: int
    count: int
    position: int
    """Value of the column ``position`` for the first of them."""
    is_open: bool = False
    """Whether the task of a job reads all that have come since, too."""


class _Reader(LazyConnection):
    """Base of both readers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = Options("redis-list", given, OPTIONS)
        super().__init__(options.url())
        self._key = encoded(options.text("key"))
        self._text = options.truth("text", False)
        self._parts = options.whole("partitions", options.whole("minPartitions", 1, most=1_000), most=1_000)
        self._name = options.text("name", "stream")
        if not self._name or ":" in self._name:
            raise options.wrong("name", f"{self._name!r}: expected a word without a colon")
        self._most = options.whole("maxOffsetsPerTrigger", 10_000)
        self._bytes = options.whole("maxBytesPerTrigger", 64 * 2**20)
        self._fails = options.truth("failOnDataLoss", True)

    def lengths(self, keys: Sequence[bytes]) -> list[int]:
        replies = exchange(self.redis, [("LLEN", key) for key in keys])
        return [int(checked(self.redis, reply, key)) for reply, key in zip(replies, keys, strict=True)]

    def spans(self, key: bytes, length: int, position: int = 0) -> list[Span]:
        """Divide ``key`` into about equal parts, the oldest messages first."""
        cuts = [length * part // self._parts for part in range(self._parts + 1)]
        parts = pairwise(cuts)
        return [Span(key, first, end - first, position + first) for first, end in parts if end > first]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ``span``, the oldest first; fewer if some are gone."""
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
            page = max(1, min(PAGE_ROWS, PAGE_BYTES * count // (sum(map(len, messages)) + 1)))

    def _columns(self, messages: list[bytes], span: Span, done: int) -> pa.RecordBatch:
        values = pa.array(messages, pa.binary())
        if self._text:
            values = _texts(values, messages, span, done)
        first = span.position + done
        positions = pa.array(range(first, first + len(messages)), pa.int64())
        return pa.RecordBatch.from_arrays([values, positions], ["value", "position"])

    def _end_early(self, span: Span, done: int) -> None:
        """Do nothing: a batch job leaves the list to other consumers."""


class BatchReader(_Reader, DataSourceReader):
    """Reads what the list holds when a task begins, and leaves it there. Spark plans a frame for all of its actions."""

    def partitions(self) -> Sequence[InputPartition]:
        (length,) = self.lengths([self._key])
        *others, last = self.spans(self._key, length) or [Span(self._key, 0, 0, 0)]
        return [*others, replace(last, is_open=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        if partition.is_open:
            (length,) = self.lengths([self._key])
            partition = replace(partition, count=length - partition.first)
        return super().read(partition)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads segments. Offsets are ``{"sequence": n}``, the number of a segment, from 1 on."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self._state = b"%b:spark:%b" % (beside(self.redis, self._key), encoded(self._name))
        self._left: int | None = None
        """With ``availableNow``: how many of the messages that waited at the start are still to be taken."""

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        (self._left,) = self.lengths([self._key])

    def initialOffset(self) -> dict[str, int]:
        """Return the last finished segment: a query without its checkpoint goes on with the segments that are left."""
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
        for some in chunks(numbers, MAX_KEYS):
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
        for numbers in chunks(range(last if done is None else done + 1, last + 1), MAX_KEYS):
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
        """Raise ``DataLost``, or log a warning with ``failOnDataLoss=false``."""
        state = decoded(self._state)
        problem = (
            f"redis-list: {decoded(self._segment(number))} is gone or incomplete: it held messages of "
            f"{decoded(self._key)} that the query with the option name={self._name} had taken. Either the server lost "
            f"data, or another query has that name, or the checkpoint is older than what was finished ({state} says "
            f"{self._done()})"
        )
        if self._fails:
            raise DataLost(f"{problem}. Restore the server's data; or go on without them: failOnDataLoss=false")
        logging.getLogger(__name__).warning("%s; going on without them", problem)


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
