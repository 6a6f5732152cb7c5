"""The format ``redis-hash``: a row is a hash, its columns are fields.

With ``mode=set`` tasks write their rows at once: to write a hash again changes nothing. With ``mode=add`` they stage
them, ``penstock:spark-staged:<uuid>``, as JSON; at the commit it is decided in the ledger hash
``penstock:spark:<query>`` that these rows and no others are those of the batch, and then they are added, some hundred a
script, each of which takes its rows away with it: whoever comes after a crash goes on with what is left.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)
from redis import Redis
from redis.exceptions import ResponseError

from penstock.errors import PenstockError, WrongOption, WrongType
from penstock.lua import Script
from penstock.names import decoded
from penstock.spark.options import Options, connect, exchange, run
from penstock.spark.staging import DAY, KEYS, Staged, discard, query_of_task, staging, told
from penstock.wire import Command

LUA: Final = Path(__file__).parent / "lua"
DECIDE, ADD = (Script.read(LUA / f"{verb}.lua") for verb in ("decide", "add"))
READS: Final = frozenset({"url", "keys", "key_column", "partitions"})
WRITES: Final = frozenset({"url", "key_column", "mode", "ttl"})
WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
FLOAT: Final = (FloatType, DoubleType)
READABLE: Final = (StringType, BinaryType, BooleanType, *WHOLE, *FLOAT)
FIELDS: Final = MapType(StringType(), StringType())
WORDS: Final = 6_000
"""Most words of the rows that one script adds: Lua's stack takes some thousand."""
OUT: Final = b"penstock"
"""What staged rows are for: many hashes."""


class RedisHash(DataSource):
    """See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "redis-hash"

    def schema(self) -> StructType:
        options = Options("redis-hash", self.options, READS)
        return StructType([StructField(options.text("key_column", "key"), StringType()), StructField("fields", FIELDS)])

    def reader(self, schema: StructType) -> "HashReader":
        return HashReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        return StreamWriter(self.options, schema, overwrite)


@dataclass(frozen=True)
class Hashes(InputPartition):
    """What one task reads."""

    keys: list[bytes]


class HashReader(DataSourceReader):
    """The hashes that are there when the job is planned, by name; one that is gone when its turn comes is no row."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options("redis-hash", given, READS)
        self._url = options.url()
        self._names = [name for name in options.text("keys").split(",") if name]
        self._parts = options.whole("partitions", 1, most=1_000)
        self._column = options.text("key_column", "key")
        self._schema = schema
        types = {field.name: field.dataType for field in schema}
        if not isinstance(types.pop(self._column, None), StringType):
            raise WrongOption(f"redis-hash: schema: no column {self._column} string: the option key_column names it")
        self._types = None if types == {"fields": FIELDS} else types
        """By field; None where all fields of a hash are one column."""
        for name, type_ in types.items() if self._types is not None else ():
            if not isinstance(type_, READABLE):
                expected = "string, binary, boolean or a number that is no decimal; or no schema"
                raise WrongOption(f"redis-hash: schema: column {name} {type_.simpleString()}: expected {expected}")

    def partitions(self) -> Sequence[InputPartition]:
        patterns = [name for name in self._names if any(letter in name for letter in "*?[")]
        found = {name.encode() for name in self._names if name not in patterns}
        with connect(self._url) as redis:
            for pattern in patterns:
                found.update(redis.scan_iter(match=pattern, count=KEYS, _type="hash"))
        keys = sorted(found)
        cuts = [len(keys) * part // self._parts for part in range(self._parts + 1)]
        return [Hashes(keys[first:end]) for first, end in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Hashes)
        with connect(self._url) as redis:
            for first in range(0, len(partition.keys), KEYS):
                keys = partition.keys[first : first + KEYS]
                if self._types is None:
                    found, columns = _whole(redis, keys)
                else:
                    found, columns = _chosen(redis, keys, self._types)
                yield self._batch(found, columns)

    def _batch(self, keys: list[bytes], columns: dict[str, list[Any]]) -> pa.RecordBatch:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        arrays = [
            _cast(keys, keys, "its name", field.type)
            if field.name == self._column
            else _cast(columns[field.name], keys, f"field {field.name}", field.type)
            if self._types is not None
            else pa.array(columns["fields"], field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _whole(redis: "Redis", keys: list[bytes]) -> tuple[list[bytes], dict[str, list[Any]]]:
    """The keys that are there, and all fields of each."""
    hashes = _replies(redis, keys, [("HGETALL", key) for key in keys])
    found = [(key, words) for key, words in zip(keys, hashes, strict=True) if words]
    fields = [_pairs(key, words) for key, words in found]
    return [key for key, _ in found], {"fields": fields}


def _chosen(
    redis: "Redis", keys: list[bytes], types: Mapping[str, DataType]
) -> tuple[list[bytes], dict[str, list[Any]]]:
    """The keys that are there, and their values by field."""
    fields = [name.encode() for name in types]
    if not fields:
        there = _replies(redis, keys, [("HLEN", key) for key in keys])
        return [key for key, length in zip(keys, there, strict=True) if length], {}
    rows = _replies(redis, keys, [("HMGET", key, *fields) for key in keys])
    bare = [key for key, row in zip(keys, rows, strict=True) if not any(value is not None for value in row)]
    lengths = _replies(redis, bare, [("HLEN", key) for key in bare])
    gone = {key for key, length in zip(bare, lengths, strict=True) if not length}
    found = [(key, row) for key, row in zip(keys, rows, strict=True) if key not in gone]
    values = zip(*(row for _, row in found), strict=True) if found else ([] for _ in fields)
    return [key for key, _ in found], {name: list(column) for name, column in zip(types, values, strict=True)}


def _replies(redis: "Redis", keys: Sequence[bytes], commands: list[Command]) -> list[Any]:
    """One a key. Raises ``WrongType`` with the name of that which is no hash."""
    replies = exchange(redis, commands) if commands else []
    for key, reply in zip(keys, replies, strict=True):
        if isinstance(reply, Exception):
            raise _named(redis, key, reply)
    return replies


def _named(redis: "Redis", key: bytes, error: Exception) -> Exception:
    wrong = isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")
    return WrongType(f"{decoded(key)} holds a {decoded(redis.type(key))}, expected a hash") if wrong else error


def _pairs(key: bytes, words: list[bytes]) -> list[tuple[str, str]]:
    try:
        texts = [word.decode() for word in words]
    except UnicodeDecodeError as error:
        raise PenstockError(
            f"redis-hash: {decoded(key)}: a field or value is no UTF-8: {error}. Read it with a schema, as binary"
        ) from None
    return list(zip(texts[::2], texts[1::2], strict=True))


def _cast(values: list[Any], keys: list[bytes], what: str, type_: Any) -> Any:
    """The column. Raises ``PenstockError`` that says where a value is that cannot be read as ``type_``."""
    try:
        column = pa.array(values, pa.binary())
        return column if pa.types.is_binary(type_) else column.cast(pa.string()).cast(type_)
    except pa.ArrowInvalid:
        for key, value in zip(keys, values, strict=True):
            try:
                pa.array([value], pa.binary()).cast(pa.string()).cast(type_)
            except pa.ArrowInvalid:
                raise PenstockError(f"redis-hash: {decoded(key)}: {what}: {value!r} is no {type_}") from None
        raise


class _Writer:
    """What both kinds of writing have in common. It is pickled, so it connects when it must."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        options = Options("redis-hash", given, WRITES)
        self._url = options.url()
        self._column = options.text("key_column", "key")
        self._adds = options.one_of("mode", "set", ("set", "add")) == "add"
        self._life = options.whole("ttl", 0, least=0)
        self._overwrite = overwrite
        if self._adds and overwrite:
            raise options.wrong("mode", "add goes with Spark's mode append (or update) only: nothing is replaced")
        types = {field.name: field.dataType for field in schema}
        if not isinstance(types.pop(self._column, None), StringType):
            raise WrongOption(f"redis-hash: no column {self._column} (string): the option key_column names it")
        for name, type_ in types.items():
            if self._adds and not isinstance(type_, WHOLE + FLOAT):
                raise WrongOption(
                    f"redis-hash: column {name} {type_.simpleString()}: only numbers (no decimal) are added"
                )
            if isinstance(type_, (ArrayType, StructType, MapType)) and type_ != FIELDS:
                raise WrongOption(f"redis-hash: column {name} {type_.simpleString()}: expected one value, or {_FIELDS}")

    def _write(self, batches: Iterator[pa.RecordBatch], query: Callable[[], str]) -> Staged:
        with connect(self._url) as redis:
            if self._adds:
                return self._stage(redis, batches, query())
            for batch in batches:
                for first in range(0, batch.num_rows, KEYS):
                    self._set(redis, _rows(batch.slice(first, KEYS), self._column))
        return Staged("", {})

    def _set(self, redis: "Redis", rows: list[tuple[str, list[Any]]]) -> None:
        """Some hashes in one round trip; where they are replaced, or expire, at once."""
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
            if isinstance(reply, Exception):
                raise _named(redis, "".join(map(str, command[1:2])).encode(), reply)

    def _stage(self, redis: "Redis", batches: Iterator[pa.RecordBatch], query: str) -> Staged:
        with staging(redis) as stage:
            for batch in batches:
                rows = [json.dumps([key, *_amounts(key, words)]).encode() for key, words in _rows(batch, self._column)]
                stage.put(OUT, rows)
        return Staged(query, stage.lists)

    def _apply(self, messages: Sequence[WriterCommitMessage | None], writer: str, batch: int, life: int) -> None:
        """Add what is staged, once. What an earlier commit decided on, and did not finish, comes first."""
        parts = [message.lists[OUT] for message in messages if isinstance(message, Staged) and OUT in message.lists]
        if not parts:
            return
        ledger = b"penstock:spark:" + writer.encode()
        with connect(self._url) as redis:
            try:
                self._finish(redis, ledger)
                counts = [count for _, count in parts]
                staged = [part for part, _ in parts]
                if run(redis, DECIDE, ledger=ledger, parts=staged, batch=batch, life=life, counts=counts):
                    self._finish(redis, ledger)
            except ResponseError as error:
                raise told(error, f"batch {batch}") from None

    def _finish(self, redis: "Redis", ledger: bytes) -> None:
        """Add what was decided on."""
        names: Any = redis.hget(ledger, "staged")
        for staged in (names or b"").split():
            left: Any = redis.llen(staged)
            while left:
                rows: Any = redis.lrange(staged, -KEYS, -1)
                hashes, words = _some([json.loads(row) for row in reversed(rows)])
                named = {"staged": staged, "hashes": hashes, "left": left, "life": self._life, "words": words}
                left = run(redis, ADD, **named)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with connect(self._url) as redis:
            discard(
                redis,
                [part for message in messages if isinstance(message, Staged) for part, _ in message.lists.values()],
            )


_FIELDS: Final = FIELDS.simpleString()


def _some(rows: list[list[Any]]) -> tuple[list[str], list[Any]]:
    """The hashes of the first rows, and the words for their fields, as many as one script takes."""
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


def _rows(batch: pa.RecordBatch, column: str) -> list[tuple[str, list[Any]]]:
    """Of each row its key, and fields and values in turns, those without null."""
    keys: list[Any] = batch.column(column).to_pylist()
    if None in keys:
        raise PenstockError(f"redis-hash: column {column}: a row has null, which is no key")
    rows: list[list[Any]] = [[] for _ in keys]
    for field in batch.schema:
        if field.name == column:
            continue
        values = batch.column(field.name).to_pylist()
        if pa.types.is_map(field.type):
            for row, pairs in zip(rows, values, strict=True):
                row += [word for name, value in pairs or () if value is not None for word in (name, value)]
            continue
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row += (field.name, value if isinstance(value, (str, bytes)) else _text(value))
    return list(zip(keys, rows, strict=True))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """With ``mode=add`` a job that fails before its commit adds nothing."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(given, schema, overwrite)
        self._job = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, lambda: "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._apply(messages, f"job:{self._job}", 0, DAY)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """With ``mode=add`` each batch of a query is added once, however often Spark repeats it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, query_of_task)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for query in {message.query for message in messages if isinstance(message, Staged)}:
            self._apply(messages, query, batchId, 0)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)
