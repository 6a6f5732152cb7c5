"""Sink for hashes: fields are set or added to.

With ``mode=set`` tasks write their rows at once, which is idempotent. With ``mode=add`` they stage rows as JSON in
``penstock:spark-staged:<uuid>``, and each row is added once: ``once.py``. The ledger is ``penstock:spark:<query>``.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructType
from redis import Redis

from penstock.base.errors import PenstockError, WrongOption
from penstock.core.raw_connection import Command
from penstock.spark.fields import FLOAT, WHOLE, check, fields_of
from penstock.spark.options import Options, connect, run, script
from penstock.spark.sinks.at_once import AtOnce
from penstock.spark.sinks.once import apply_once
from penstock.spark.staging import MAX_KEYS, Staged, by_out, checked, staging

ADD: Final = script("add")
OPTIONS: Final = frozenset({"url", "keyColumn", "keyPrefix", "mode", "ttl"})
WORDS: Final = 6_000
"""Maximum number of words of the rows that one script adds: Lua's stack is limited to some thousand."""
OUT: Final = b"penstock"
"""Target of staged rows, in place of the names of many hashes."""


class HashSink(AtOnce):
    """Writes a hash for each row; the column ``keyColumn`` holds its key."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        options = Options("redis-hash", given, OPTIONS)
        self.url = options.url()
        self._column = options.text("keyColumn", "key")
        self._prefix = options.text("keyPrefix", "")
        self._adds = options.one_of("mode", "set", ("set", "add")) == "add"
        self._life = options.whole("ttl", 0, least=0)
        self._overwrite = overwrite
        self.in_transactions = overwrite or bool(self._life)
        if self._adds and "+cluster://" in self.url:
            raise options.wrong("mode", "add does not work on a Redis Cluster, whose scripts have keys of one slot")
        if self._adds and overwrite:
            raise options.wrong("mode", "add goes with Spark's mode append (or update) only: nothing is replaced")
        types = {field.name: field.dataType for field in schema}
        if not isinstance(types.pop(self._column, None), StringType):
            raise WrongOption(f"redis-hash: no column {self._column} (string): the option keyColumn names it")
        for name, type_ in types.items() if self._adds else ():
            if not isinstance(type_, WHOLE + FLOAT):
                raise WrongOption(
                    f"redis-hash: column {name} {type_.simpleString()}: only numbers (no decimal) are added"
                )
        check("redis-hash", schema)

    def write(self, batches: Iterator[pa.RecordBatch], query: Callable[[], str]) -> Staged:
        if not self._adds:
            return super().write(batches, query)
        writer = query()
        with connect(self.url) as redis:
            return self._stage(redis, batches, writer)

    def _rows(self, batch: pa.RecordBatch) -> list[tuple[str, list[Any]]]:
        """Return the key of each row, with fields and values in turns."""
        keys: list[Any] = batch.column(self._column).to_pylist()
        if None in keys:
            raise PenstockError(f"redis-hash: column {self._column}: a row has null, which is no key")
        names = [self._prefix + key for key in keys] if self._prefix else keys
        return list(zip(names, fields_of(batch, but=self._column), strict=True))

    def groups(self, batch: pa.RecordBatch) -> list[list[Command]]:
        groups: list[list[Command]] = []
        for name, words in self._rows(batch):
            key = name.encode()
            group: list[Command] = [("UNLINK", key)] if self._overwrite else []
            if words:
                group.append(("HSET", key, *words))
                group += [("EXPIRE", key, self._life)] if self._life else []
            groups.append(group)
        return groups

    def check(self, redis: "Redis", key: bytes, reply: Any) -> None:
        checked(redis, reply, key, "hash")

    def _stage(self, redis: "Redis", batches: Iterator[pa.RecordBatch], query: str) -> Staged:
        with staging(redis) as stage:
            for batch in batches:
                rows = [json.dumps([key, *_amounts(key, words)]).encode() for key, words in self._rows(batch)]
                stage.put(OUT, rows)
        return Staged(query, stage.lists)

    def publish(self, messages: Sequence[WriterCommitMessage | None], writer: str, batch: int, life: int) -> None:
        """Add the staged rows."""
        parts = by_out(messages).get(OUT)
        if not parts:
            return
        ledger = f"penstock:spark:{'job:' if life else ''}{writer}".encode()
        with connect(self.url) as redis:

            def add(staged: bytes, left: int) -> int:
                rows: Any = redis.lrange(staged, -MAX_KEYS, -1)
                hashes, words = _some([json.loads(row) for row in reversed(rows)])
                named = {"staged": staged, "hashes": hashes, "left": left, "life": self._life, "words": words}
                return int(run(redis, ADD, **named))

            apply_once(redis, OUT, ledger, parts, batch, life, add)


def _some(rows: list[list[Any]]) -> tuple[list[str], list[Any]]:
    """Return the keys and the words of the first rows, as many as one script takes."""
    hashes: list[str] = []
    words: list[Any] = []
    for key, *amounts in rows:
        if hashes and len(words) + len(amounts) + 1 > WORDS:
            break
        hashes.append(key)
        words += [len(amounts) // 2, *amounts]
    return hashes, words


def _amounts(key: str, words: list[Any]) -> list[Any]:
    for name, amount in zip(words[::2], words[1::2], strict=True):
        if not math.isfinite(float(amount)):
            raise PenstockError(f"redis-hash: {key}: field {name}: {amount} cannot be added")
    return words
