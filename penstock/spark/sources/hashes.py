"""Source for hashes, for batch jobs: one row for each hash, sorted by key."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, DataType, StringType, StructType
from redis import Redis

from penstock.encoding import decoded
from penstock.errors import PenstockError, WrongOption
from penstock.raw_connection import Command
from penstock.spark.fields import FIELDS, FLOAT, WHOLE
from penstock.spark.options import Options, connect, exchange
from penstock.spark.staging import MAX_KEYS, checked

OPTIONS: Final = frozenset({"url", "keys", "key_column", "partitions"})
READABLE: Final = (StringType, BinaryType, BooleanType, *WHOLE, *FLOAT)


@dataclass(frozen=True)
class Hashes(InputPartition):
    """The keys that one task reads."""

    keys: list[bytes]


class HashReader(DataSourceReader):
    """Reads the hashes that exist when the job is planned; one that is gone when it is read gives no row."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options("redis-hash", given, OPTIONS)
        self._url = options.url()
        self._names = [name for name in options.text("keys").split(",") if name]
        self._parts = options.whole("partitions", 1, most=1_000)
        self._column = options.text("key_column", "key")
        self._schema = schema
        types = {field.name: field.dataType for field in schema}
        if not isinstance(types.pop(self._column, None), StringType):
            raise WrongOption(f"redis-hash: schema: no column {self._column} string: the option key_column names it")
        self._types = None if types == {"fields": FIELDS} else types
        """Types by field; None if all fields of a hash are in one column."""
        for name, type_ in types.items() if self._types is not None else ():
            if not isinstance(type_, READABLE):
                expected = "string, binary, boolean or a number that is no decimal; or no schema"
                raise WrongOption(f"redis-hash: schema: column {name} {type_.simpleString()}: expected {expected}")

    def partitions(self) -> Sequence[InputPartition]:
        patterns = [name for name in self._names if any(letter in name for letter in "*?[")]
        found = {name.encode() for name in self._names if name not in patterns}
        with connect(self._url) as redis:
            for pattern in patterns:
                found.update(redis.scan_iter(match=pattern, count=MAX_KEYS, _type="hash"))
        keys = sorted(found)
        cuts = [len(keys) * part // self._parts for part in range(self._parts + 1)]
        return [Hashes(keys[first:end]) for first, end in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Hashes)
        with connect(self._url) as redis:
            for first in range(0, len(partition.keys), MAX_KEYS):
                keys = partition.keys[first : first + MAX_KEYS]
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
    """Return the keys that exist, and all fields of each."""
    hashes = _replies(redis, keys, [("HGETALL", key) for key in keys])
    found = [(key, words) for key, words in zip(keys, hashes, strict=True) if words]
    fields = [_pairs(key, words) for key, words in found]
    return [key for key, _ in found], {"fields": fields}


def _chosen(
    redis: "Redis", keys: list[bytes], types: Mapping[str, DataType]
) -> tuple[list[bytes], dict[str, list[Any]]]:
    """Return the keys that exist, and their values by field."""
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
    """Return a reply for each key. Raise ``WrongType`` with the name of a key that is no hash."""
    replies = exchange(redis, commands) if commands else []
    return [checked(redis, reply, key, "hash") for key, reply in zip(keys, replies, strict=True)]


def _pairs(key: bytes, words: list[bytes]) -> list[tuple[str, str]]:
    try:
        texts = [word.decode() for word in words]
    except UnicodeDecodeError as error:
        raise PenstockError(
            f"redis-hash: {decoded(key)}: a field or value is no UTF-8: {error}. Read it with a schema, as binary"
        ) from None
    return list(zip(texts[::2], texts[1::2], strict=True))


def _cast(values: list[Any], keys: list[bytes], what: str, type_: Any) -> Any:
    """Return the column. Raise ``PenstockError`` with the key and the value that cannot be read as ``type_``."""
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
