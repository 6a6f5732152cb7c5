"""Lists as a sink: all rows of a batch at once, after those that are there, or in their place.

Tasks put their rows in staged lists, ``<key>:spark-staged:<uuid>``. When Spark commits the batch one script appends
them to ``<key>``, and notes its number in ``<key>:spark-written`` under the query's id, which is that of its
checkpoint: a batch that Spark repeats changes nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType
from redis.exceptions import NoScriptError

from penstock.encoding import decoded
from penstock.errors import PenstockError, WrongOption
from penstock.spark.options import Options, connect, exchange, script
from penstock.spark.sinks.once import told
from penstock.spark.sinks.out import Out
from penstock.spark.staging import KEYS, Staged, by_out, chunks, staging

PUBLISH: Final = script("publish")
OPTIONS: Final = frozenset({"url", "key"})
COLUMNS: Final = {"value": (BinaryType, StringType), "key": (StringType,)}


class ListSink:
    """Each list gets all rows of a batch that are for it, or none."""

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
        """Append what is staged to its lists, or put it in the place of what they hold."""
        staged = by_out(messages)
        if self._out.only and self._overwrite:
            staged.setdefault(self._out.only, [])
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
        with connect(self.url) as redis:
            for some in chunks(calls, KEYS):
                replies = exchange(redis, [PUBLISH.by_digest(**call) for call in some])
                for call, reply in zip(some, replies, strict=True):
                    if isinstance(reply, NoScriptError):
                        reply = exchange(redis, [PUBLISH.by_source(**call)])[0]
                    if isinstance(reply, Exception):
                        raise told(reply, f"batch {batch} for {decoded(call['out'])}")
