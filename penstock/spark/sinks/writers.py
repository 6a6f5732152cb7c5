"""Writers of a batch job and of a streaming query, as Spark expects them, around any sink."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.spark.options import connect
from penstock.spark.staging import DAY, Staged, by_out, discard, query_of_task


class Sink(Protocol):
    """The part of a writer that differs by type. It is pickled, so it connects when it writes."""

    url: str

    def write(self, batches: Iterator[pa.RecordBatch], query: Callable[[], str]) -> Staged:
        """Write or stage the rows of a task. ``query`` asks Spark for the id of the query."""
        ...

    def publish(self, messages: Sequence[WriterCommitMessage | None], writer: str, batch: int, life: int) -> None:
        """Apply the staged rows of all tasks, once for each ``batch`` of ``writer``.

        ``writer`` is the id of a query or a job. Its ledger expires after ``life`` seconds (0: never).
        """
        ...


class BatchWriter(DataSourceArrowWriter):
    """Writer of a batch job: staged rows take effect at its commit, or never."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._job = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator, str)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.publish(messages, self._job, 0, DAY)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _discard(self._sink, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query: a batch takes effect once, however often Spark repeats it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator, query_of_task)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for query in {message.query for message in messages if isinstance(message, Staged)}:
            self._sink.publish(messages, query, batchId, 0)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _discard(self._sink, messages)


def _discard(sink: Sink, messages: Sequence[WriterCommitMessage | None]) -> None:
    with connect(sink.url) as redis:
        discard(redis, [staged for parts in by_out(messages).values() for staged, _ in parts])
