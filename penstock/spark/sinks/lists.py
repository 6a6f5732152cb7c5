"""Sink for lists: all rows of a batch are appended at once, or replace the list.

Tasks write to staged lists, ``<key>:spark-staged:<uuid>``. When Spark commits the batch, one script appends them to
``<key>`` and notes the batch number in ``<key>:spark-written`` under the id of the query, which its checkpoint keeps.
So a repeated batch changes nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType
from redis.exceptions import NoScriptError

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError, WrongOption
from penstock.spark.cluster import beside
from penstock.spark.options import Options, connect, exchange, script
from penstock.spark.sinks.once import operator_error
from penstock.spark.sinks.out import Out
from penstock.spark.staging import MAX_KEYS, Staged, by_out, chunks, staging

PUBLISH: Final = script("publish")
OPTIONS: Final = frozenset({"url", "key"})
COLUMNS: Final = {"value": (BinaryType, StringType), "key": (StringType,)}


class ListSink:
    """Appends to each list all of its rows of a batch, or none."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        options = Options("redis-list", given, OPTIONS)
        self.url = options.url()
        self._overwrite = overwrite
        self._out = Out(options, schema)
        for field in schema:
            if field.name != "position" and not isinstance(field.dataType, COLUMNS.get(field.name, ())):
                expected = "value (binary or string), key (string) or position, which is left out"
                raise WrongOption(
                    f"redis-list: column {field.name} {field.dataType.simpleString()}: expected {expected}"
                )
        if "value" not in schema.names:
            raise WrongOption(f"redis-list: no column value (binary or string) among {', '.join(schema.names)}")

    def write(self, batches: Iterator[pa.RecordBatch], query: Callable[[], str]) -> Staged:
        writer = query()
        with connect(self.url) as redis, staging(redis) as stage:
            for batch in batches:
                for name in COLUMNS.keys() & set(batch.schema.names):
                    if batch.column(name).null_count:
                        raise PenstockError(f"redis-list: column {name}: a row has null, which no list can hold")
                values: list[bytes] = batch.column("value").cast(pa.binary()).to_pylist()
                for out, rows in self._out.share(batch, values).items():
                    stage.put(out, rows)
        return Staged(writer, stage.lists)

    def publish(self, messages: Sequence[WriterCommitMessage | None], writer: str, batch: int, life: int) -> None:
        """Append the staged rows to their lists, or replace the lists."""
        staged = by_out(messages)
        if self._out.only and self._overwrite:
            staged.setdefault(self._out.only, [])
        with connect(self.url) as redis:
            calls = [
                {
                    "out": out,
                    "ledger": beside(redis, out) + b":spark-written" + (b":" + writer.encode() if life else b""),
                    "parts": [part for part, _ in parts],
                    "counts": [count for _, count in parts],
                    "writer": writer,
                    "batch": batch,
                    "replace": int(self._overwrite),
                    "life": life,
                }
                for out, parts in staged.items()
            ]
            for some in chunks(calls, MAX_KEYS):
                replies = exchange(redis, [PUBLISH.by_digest(**call) for call in some])
                for call, reply in zip(some, replies, strict=True):
                    if isinstance(reply, NoScriptError):
                        reply = exchange(redis, [PUBLISH.by_source(**call)])[0]
                    if isinstance(reply, Exception):
                        raise operator_error(reply, f"batch {batch} for {decoded(call['out'])}")
