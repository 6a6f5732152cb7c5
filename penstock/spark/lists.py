"""The format ``redis-list``: messages are any bytes, publishers LPUSH, and the oldest is at the tail.

A query that reads takes the messages of a micro-batch to a segment, a list of their own, which stays as it is until
Spark has committed the batch; so the batch is the same whenever it is read again. Keys: ``<key>:spark:<name>:<number>``
is a segment, ``<key>:spark:<name>`` the state hash of ``fix.lua``.

Tasks that write put their rows in staged lists, ``<key>:spark-staged:<uuid>``. When Spark commits the batch one script
appends them to ``<key>``, and notes its number in ``<key>:spark-written`` under the query's id, which is that of its
checkpoint: a batch that Spark repeats changes nothing.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, StringType, StructType
from redis.exceptions import NoScriptError, ResponseError

from penstock.errors import DataLost, PenstockError, WrongOption
from penstock.lua import Script
from penstock.names import decoded, encoded
from penstock.spark.options import Connecting, Options, connect, exchange, run
from penstock.spark.staging import (
    BYTES,
    DAY,
    KEYS,
    PAGE,
    Staged,
    checked,
    chunks,
    discard,
    query_of_task,
    staging,
    told,
)

LUA: Final = Path(__file__).parent / "lua"
FIX, FINISH, PUBLISH = (Script.read(LUA / f"{verb}.lua") for verb in ("fix", "finish", "publish"))
READS: Final = frozenset(
    {"url", "key", "name", "text", "partitions", "maxMessagesPerTrigger", "maxBytesPerTrigger", "failOnDataLoss"}
)
WRITES: Final = frozenset({"url", "key"})
FIRST: Final = 64
"""Messages of the first page, when nobody knows how large they are."""


class RedisList(DataSource):
    """See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "redis-list"

    def schema(self) -> str:
        text = Options("redis-list", self.options, READS).truth("text", False)
        return f"value {'string' if text else 'binary'}, position long"

    def reader(self, schema: StructType) -> "BatchReader":
        self._check(schema)
        return BatchReader(self.options)

    def streamReader(self, schema: StructType) -> "StreamReader":
        self._check(schema)
        return StreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        return StreamWriter(self.options, schema, overwrite)

    def _check(self, schema: StructType) -> None:
        """Refuse columns that a user asks for and that are not ours."""
        ours = self.schema()
        given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        if given.replace("bigint", "long") != ours:
            raise WrongOption(f"redis-list: schema: {given}: expected {ours}; a string needs the option text=true")


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
        options = Options("redis-list", given, READS)
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


class _Writer:
    """What both kinds of writing have in common. It is pickled, so it connects when it must."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        options = Options("redis-list", given, WRITES)
        self._url = options.url()
        self._overwrite = overwrite
        names = [field.name for field in schema]
        key = options.text("key", "")
        self._out = encoded(key) if key else None
        if not key and "key" not in names:
            raise options.wrong("key", "missing: give it, or a column key")
        if key and "key" in names:
            raise options.wrong("key", "given, and there is a column key, too: expected one of them")
        for field in schema:
            allowed = {"value": (BinaryType, StringType), "key": (StringType,)}.get(field.name, ())
            if field.name != "position" and not isinstance(field.dataType, allowed):
                expected = "value (binary or string), key (string) or position, which is left out"
                raise WrongOption(
                    f"redis-list: column {field.name} {field.dataType.simpleString()}: expected {expected}"
                )
        if "value" not in names:
            raise WrongOption(f"redis-list: no column value (binary or string) among {', '.join(names)}")

    def _stage(self, batches: Iterator[pa.RecordBatch], query: str) -> Staged:
        with connect(self._url) as redis, staging(redis) as stage:
            for batch in batches:
                for out, rows in self._by_list(batch):
                    stage.put(out, rows)
        return Staged(query, stage.lists)

    def _by_list(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, list[bytes]]]:
        for name in {"value", "key"} & set(batch.schema.names):
            if batch.column(name).null_count:
                raise PenstockError(f"redis-list: column {name}: a row has null, which no list can hold")
        rows: list[bytes] = batch.column("value").cast(pa.binary()).to_pylist()
        if self._out is not None:
            return iter([(self._out, rows)])
        by_list: dict[bytes, list[bytes]] = {}
        for out, row in zip(batch.column("key").cast(pa.binary()).to_pylist(), rows, strict=True):
            by_list.setdefault(out, []).append(row)
        return iter(by_list.items())

    def _publish(self, messages: Sequence[WriterCommitMessage | None], writer: str, batch: int, life: int) -> None:
        """Append what is staged to its lists: each of them gets all of it or nothing."""
        staged: dict[bytes, list[tuple[bytes, int]]] = {self._out: []} if self._out and self._overwrite else {}
        for message in messages:
            for out, part in message.lists.items() if isinstance(message, Staged) else ():
                staged.setdefault(out, []).append(part)
        calls = [
            {
                "out": out,
                "ledger": out + b":spark-written" + (b":" + writer.encode() if life else b""),
                "parts": [part for part, _ in parts],
                "counts": [count for _, count in parts],
                "writer": writer,
                "batch": batch,
                "replace": int(self._overwrite),
                "life": life,
            }
            for out, parts in staged.items()
        ]
        with connect(self._url) as redis:
            for some in chunks(calls, KEYS):
                replies = exchange(redis, [PUBLISH.by_digest(**call) for call in some])
                for call, reply in zip(some, replies, strict=True):
                    if isinstance(reply, NoScriptError):
                        reply = exchange(redis, [PUBLISH.by_source(**call)])[0]
                    if isinstance(reply, Exception):
                        raise told(reply, f"batch {batch} for {decoded(call['out'])}")

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with connect(self._url) as redis:
            for message in messages:
                if isinstance(message, Staged):
                    discard(redis, [staged for staged, _ in message.lists.values()])


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A job that fails leaves nothing in the list."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(given, schema, overwrite)
        self._job = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(iterator, "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publish(messages, self._job, 0, DAY)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Each batch of a query is there once, however often Spark repeats it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(iterator, query_of_task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for query in {message.query for message in messages if isinstance(message, Staged)}:
            self._publish(messages, query, batchId, 0)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


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
