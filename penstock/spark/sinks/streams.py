"""Sink for streams: one entry for each row, in order, exactly once.

Tasks write to staged lists, ``<key>:spark-staged:<uuid>``; ``once.py`` moves their rows to ``<key>``. The ledger is
``<key>:spark-written:<query>``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from struct import pack
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.base.errors import PenstockError, WrongOption
from penstock.spark.cluster import beside
from penstock.spark.fields import check, fields_of
from penstock.spark.options import Options, connect, run, script
from penstock.spark.sinks.once import apply_once
from penstock.spark.sinks.out import COLUMN, Out
from penstock.spark.staging import MAX_KEYS, PAGE_BYTES, Staged, by_out, staging

APPEND: Final = script("append")
OPTIONS: Final = frozenset({"url", "key", "maxLength"})
WORDS: Final = 6_000
"""Maximum number of fields and values of an entry: Lua's stack is limited to some thousand."""


class StreamSink:
    """Appends entries to streams."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        options = Options("redis-stream", given, OPTIONS)
        self.url = options.url()
        self._keep = options.whole("maxLength", 0, least=0)
        self._out = Out(options, schema)
        if overwrite:
            raise WrongOption(
                "redis-stream: mode overwrite (or complete): a stream is only appended to: expected append (or update)"
            )
        check("redis-stream", schema)
        if set(schema.names) <= {COLUMN}:
            raise WrongOption("redis-stream: no column but key: an entry has one field at least")

    def write(self, batches: Iterator[pa.RecordBatch], query: Callable[[], str]) -> Staged:
        writer = query()
        with connect(self.url) as redis, staging(redis) as stage:
            for batch in batches:
                if COLUMN in batch.schema.names and batch.column(COLUMN).null_count:
                    raise PenstockError("redis-stream: column key: a row has null, which is no key")
                rows = [_packed(words) for words in fields_of(batch, but=COLUMN)]
                for out, share in self._out.share(batch, rows).items():
                    stage.put(out, share)
        return Staged(writer, stage.lists)

    def publish(self, messages: Sequence[WriterCommitMessage | None], writer: str, batch: int, life: int) -> None:
        """Append the staged rows to their streams, one stream after the other."""
        with connect(self.url) as redis:
            for out, parts in by_out(messages).items():

                def append(staged: bytes, _: int, out: bytes = out) -> int:
                    named = {"batch": MAX_KEYS, "bytes": PAGE_BYTES, "keep": self._keep}
                    return int(run(redis, APPEND, out=out, staged=staged, **named))

                ledger = b"%b:spark-written:%b" % (beside(redis, out), writer.encode())
                apply_once(redis, out, ledger, parts, batch, life, append)


def _packed(words: list[Any]) -> bytes:
    """Encode a row as ``append.lua`` reads it."""
    if not words:
        raise PenstockError("redis-stream: all fields of a row are null: an entry has one at least")
    if len(words) > WORDS:
        raise PenstockError(f"redis-stream: a row has {len(words) // 2} fields: an entry takes {WORDS // 2} at most")
    encoded = [word if isinstance(word, bytes) else word.encode() for word in words]
    return b"".join(pack("<I", len(word)) + word for word in encoded)
