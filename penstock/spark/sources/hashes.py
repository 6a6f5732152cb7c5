"""Source for hashes, for batch jobs: one row for each hash, sorted by key. ``versions.py`` is that of queries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, DataType, StringType, StructType
from redis import Redis

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError, WrongOption
from penstock.core.raw_connection import Command
from penstock.spark.fields import FIELDS, FLOAT, WHOLE
from penstock.spark.options import Options, exchange
from penstock.spark.sources.tables import Table, TableReader
from penstock.spark.staging import checked

OPTIONS: Final = frozenset({"url", "keys", "keyColumn", "keyPrefix", "partitions", "minPartitions"})
Wanted = Callable[[bytes, Any], bool]
"""Whether the hash of this key, whose version is in a field, is wanted."""
READABLE: Final = (StringType, BinaryType, BooleanType, *WHOLE, *FLOAT)


class HashTable(Table):
    """Base of the readers of jobs and of queries."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, "hash")
        self._column = options.text("keyColumn", "key")
        self._schema = schema
        types = {field.name: field.dataType for field in schema}
        if not isinstance(types.pop(self._column, None), StringType):
            raise WrongOption(f"redis-hash: schema: no column {self._column} string: the option keyColumn names it")
        self._types = None if types == {"fields": FIELDS} else types
        """Types by field; None if all fields of a hash are in one column."""
        for name, type_ in types.items() if self._types is not None else ():
            if not isinstance(type_, READABLE):
                expected = "string, binary, boolean or a number that is no decimal; or no schema"
                raise WrongOption(f"redis-hash: schema: column {name} {type_.simpleString()}: expected {expected}")

    def batch_of(
        self,
        redis: "Redis",
        keys: list[bytes],
        version: str = "",
        is_wanted: Callable[[bytes, Any], bool] | None = None,
    ) -> pa.RecordBatch:
        """Return the rows of ``keys`` that exist, and of these only those whose field ``version`` is wanted."""
        if self._types is None:
            found, columns = _whole(redis, keys)
        else:
            found, columns = _chosen(redis, keys, {version: StringType(), **self._types} if version else self._types)
        if is_wanted:
            versions = (
                [dict(row).get(version) for row in columns["fields"]] if self._types is None else columns[version]
            )
            places = [place for place, each in enumerate(versions) if is_wanted(found[place], each)]
            found = [found[place] for place in places]
            columns = {name: [values[place] for place in places] for name, values in columns.items()}
        return self._batch(found, columns)

    def _batch(self, keys: list[bytes], columns: dict[str, list[Any]]) -> pa.RecordBatch:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        arrays = [
            _cast([key[len(self._prefix) :] for key in keys], keys, "its name", field.type)
            if field.name == self._column
            else _cast(columns[field.name], keys, f"field {field.name}", field.type)
            if self._types is not None
            else pa.array(columns["fields"], field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class HashReader(HashTable, TableReader):
    """Reads hashes in batch."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        super().__init__(Options("redis-hash", given, OPTIONS), schema)

    def rows(self, redis: "Redis", keys: list[bytes]) -> Iterator[pa.RecordBatch]:
        yield self.batch_of(redis, keys)


def _whole(redis: "Redis", keys: list[bytes]) -> tuple[list[bytes], dict[str, list[Any]]]:
    """Return the keys that exist, and all fields of each."""
    hashes = replies_of(redis, keys, [("HGETALL", key) for key in keys])
    found = [(key, words) for key, words in zip(keys, hashes, strict=True) if words]
    fields = [_pairs(key, words) for key, words in found]
    return [key for key, _ in found], {"fields": fields}


def _chosen(
    redis: "Redis", keys: list[bytes], types: Mapping[str, DataType]
) -> tuple[list[bytes], dict[str, list[Any]]]:
    """Return the keys that exist, and their values by field."""
    fields = [name.encode() for name in types]
    if not fields:
        there = replies_of(redis, keys, [("HLEN", key) for key in keys])
        return [key for key, length in zip(keys, there, strict=True) if length], {}
    rows = replies_of(redis, keys, [("HMGET", key, *fields) for key in keys])
    bare = [key for key, row in zip(keys, rows, strict=True) if not any(value is not None for value in row)]
    lengths = replies_of(redis, bare, [("HLEN", key) for key in bare])
    gone = {key for key, length in zip(bare, lengths, strict=True) if not length}
    found = [(key, row) for key, row in zip(keys, rows, strict=True) if key not in gone]
    values = zip(*(row for _, row in found), strict=True) if found else ([] for _ in fields)
    return [key for key, _ in found], {name: list(column) for name, column in zip(types, values, strict=True)}


def replies_of(redis: "Redis", keys: Sequence[bytes], commands: list[Command]) -> list[Any]:
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
