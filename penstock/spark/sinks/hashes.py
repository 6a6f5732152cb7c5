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

from penstock.errors import PenstockError, WrongOption
from penstock.raw_connection import Command
from penstock.spark.fields import FLOAT, WHOLE, check, fields_of
from penstock.spark.options import Options, connect, exchange, run, script
from penstock.spark.sinks.once import apply_once
from penstock.spark.staging import MAX_KEYS, Staged, by_out, checked, staging

ADD: Final = script("add")
OPTIONS: Final = frozenset({"url", "key_column", "mode", "ttl"})
WORDS: Final = 6_000
"""Most words of the rows that one script adds: Lua's stack is limited to some thousand."""
OUT: Final = b"penstock"
"""Target of staged rows, in place of the names of many hashes."""


class HashSink:
    """Writes a hash for each row; the column ``key_column`` holds its key."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        options = Options("redis-hash", given, OPTIONS)
        self.url = options.url()
        self._column = options.text("key_column", "key")
        self._adds = options.one_of("mode", "set", ("set", "add")) == "add"
        self._life = options.whole("ttl", 0, least=0)
        self._overwrite = overwrite
        if self._adds and overwrite:
            raise options.wrong("mode", "add goes with Spark's mode append (or update) only: nothing is replaced")
        types = {field.name: field.dataType for field in schema}
        if not isinstance(types.pop(self._column, None), StringType):
            raise WrongOption(f"redis-hash: no column {self._column} (string): the option key_column names it")
        for name, type_ in types.items() if self._adds else ():
            if not isinstance(type_, WHOLE + FLOAT):
                raise WrongOption(
                    f"redis-hash: column {name} {type_.simpleString()}: only numbers (no decimal) are added"
                )
        check("redis-hash", schema)

    def write(self, batches: Iterator[pa.RecordBatch], query: Callable[[], str]) -> Staged:
        writer = query() if self._adds else ""
        with connect(self.url) as redis:
            if self._adds:
                return self._stage(redis, batches, writer)
            for batch in batches:
                for first in range(0, batch.num_rows, MAX_KEYS):
                    self._set(redis, self._rows(batch.slice(first, MAX_KEYS)))
        return Staged("", {})

    def _rows(self, batch: pa.RecordBatch) -> list[tuple[str, list[Any]]]:
        """Return the key of each row, with fields and values in turns."""
        keys: list[Any] = batch.column(self._column).to_pylist()
        if None in keys:
            raise PenstockError(f"redis-hash: column {self._column}: a row has null, which is no key")
        return list(zip(keys, fields_of(batch, but=self._column), strict=True))

    def _set(self, redis: "Redis", rows: list[tuple[str, list[Any]]]) -> None:
        """Write hashes in one round trip, in a transaction if they are replaced or expire."""
        commands: list[Command] = []
        for key, words in rows:
            commands += [("UNLINK", key)] if self._overwrite else []
            if words:
                commands.append(("HSET", key, *words))
                commands += [("EXPIRE", key, self._life)] if self._life else []
        if not commands:
            return
        if self._overwrite or self._life:
            commands = [("MULTI",), *commands, ("EXEC",)]
        replies = exchange(redis, commands)
        done = replies[-1] if isinstance(replies[-1], list) else replies
        named = commands[1:-1] if done is replies[-1] else commands
        for command, reply in zip(named, done, strict=True):
            checked(redis, reply, "".join(map(str, command[1:2])).encode(), "hash")

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
