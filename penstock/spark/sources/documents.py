"""Source for JSON documents, for batch jobs: one row for each document, sorted by key.

They are documents of the server (Redis 8, or its module RedisJSON) or, with ``storage=string``, plain strings.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, DataType, StringType, StructType
from redis import Redis
from redis.exceptions import ResponseError

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError, WrongOption
from penstock.core.raw_connection import Command
from penstock.spark.fields import FLOAT, WHOLE
from penstock.spark.options import Options, exchange
from penstock.spark.sources.tables import TableReader
from penstock.spark.staging import checked

OPTIONS: Final = frozenset({"url", "keys", "keyColumn", "keyPrefix", "storage", "partitions", "minPartitions"})
DOCUMENT: Final = "document"
"""The column that holds whole documents, as text."""
STORAGES: Final = ("json", "string")


class DocumentReader(TableReader):
    """Reads whole documents, or the members of objects."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options("redis-json", given, OPTIONS)
        self._plain = options.one_of("storage", "json", STORAGES) == "string"
        super().__init__(options, "string" if self._plain else "ReJSON-RL")
        self._column = options.text("keyColumn", "key")
        self._types = types_of(schema, self._column)
        self._schema = schema

    def rows(self, redis: "Redis", keys: list[bytes]) -> Iterator[pa.RecordBatch]:
        commands: list[Command] = [("GET" if self._plain else "JSON.GET", key) for key in keys]
        pairs = list(zip(keys, exchange(redis, commands), strict=True))
        for key, reply in pairs:
            check_reply(redis, key, reply, plain=self._plain)
        yield self._batch([pair for pair in pairs if pair[1] is not None])

    def _batch(self, found: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
        texts = [_text(key, document, "its document") for key, document in found]
        names = [_text(key, key[len(self._prefix) :], "its name") for key, _ in found]
        columns: dict[str, list[Any]] = {self._column: names}
        if [*self._types] == [DOCUMENT]:
            columns[DOCUMENT] = texts
        else:
            keys = [key for key, _ in found]
            rows = [self._object(key, text) for key, text in zip(keys, texts, strict=True)]
            columns |= {name: [row.get(name) for row in rows] for name in self._types}
            for name, type_ in self._types.items():
                _check(keys, columns[name], name, type_)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return pa.RecordBatch.from_arrays(
            [_array(columns[each.name], each.type, each.name, found) for each in schema], schema=schema
        )

    def _object(self, key: bytes, text: str) -> dict[str, Any]:
        found = parsed(key, text)
        if isinstance(found, dict):
            return found
        raise PenstockError(
            f"redis-json: {decoded(key)} holds no object: {text[:100]}. Read it without a schema, as {DOCUMENT}"
        )


def types_of(schema: StructType, key: str) -> dict[str, DataType]:
    """Return the types of all columns but ``key``. Raise ``WrongOption`` for one that JSON does not have."""
    types = {field.name: field.dataType for field in schema}
    if not isinstance(types.pop(key, None), StringType) or not types:
        raise WrongOption(f"redis-json: schema: no column {key} string, or no other one: the option keyColumn names it")
    for name, type_ in types.items():
        if not _is_json(type_):
            expected = "string, boolean, a number that is no decimal, array or struct of these"
            raise WrongOption(f"redis-json: column {name} {type_.simpleString()}: expected {expected}")
    if DOCUMENT in types and (len(types) > 1 or not isinstance(types[DOCUMENT], StringType)):
        raise WrongOption(f"redis-json: column {DOCUMENT} is the whole document, a string: expected no further columns")
    return types


def check_reply(redis: "Redis", key: bytes, reply: Any, *, plain: bool) -> None:
    """Raise the ``reply`` to a command for ``key`` if it is an error: see ``checked``."""
    if isinstance(reply, ResponseError) and "unknown command" in str(reply) and "JSON." in str(reply):
        problem = "the server knows no JSON documents: that needs Redis 8 or the module RedisJSON"
        raise WrongOption(f"redis-json: option storage: json: {problem}; string keeps them as strings") from reply
    checked(redis, reply, key, "string" if plain else "JSON document")


def parsed(key: bytes, text: str | bytes) -> Any:
    """Return the value of a document. Raise ``PenstockError`` with its key."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise PenstockError(f"redis-json: {decoded(key)}: its document is no JSON: {error}") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _is_json(type_: DataType) -> bool:
    if isinstance(type_, ArrayType):
        return _is_json(type_.elementType)
    if isinstance(type_, StructType):
        return all(_is_json(field.dataType) for field in type_)
    return isinstance(type_, (StringType, BooleanType, *WHOLE, *FLOAT))


def _check(keys: Sequence[bytes], values: Sequence[Any], name: str, type_: DataType) -> None:
    """Raise ``PenstockError`` for the first value that is not of ``type_``: nothing is rounded or cut."""
    for key, value in zip(keys, values, strict=True):
        if not _fits(value, type_):
            problem = f"{json.dumps(value)[:100]} is no {type_.simpleString()}"
            raise PenstockError(f"redis-json: {decoded(key)}: member {name}: {problem}")


def _fits(value: Any, type_: DataType) -> bool:
    if value is None:
        return True
    if isinstance(type_, ArrayType):
        return isinstance(value, list) and all(_fits(each, type_.elementType) for each in value)
    if isinstance(type_, StructType):
        return isinstance(value, dict) and all(_fits(value.get(each.name), each.dataType) for each in type_)
    if isinstance(type_, (StringType, BooleanType)):
        return isinstance(value, str if isinstance(type_, StringType) else bool)
    return isinstance(value, (int, float) if isinstance(type_, FLOAT) else int) and not isinstance(value, bool)


def _array(values: list[Any], type_: pa.DataType, name: str, found: Sequence[tuple[bytes, bytes]]) -> pa.Array:
    """Return the column. Raise ``PenstockError`` with the key of a value that is out of the range of ``type_``."""
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, OverflowError, ValueError):
        for (key, _), value in zip(found, values, strict=True):
            try:
                pa.array([value], type_)
            except (pa.ArrowException, OverflowError, ValueError) as error:
                raise PenstockError(f"redis-json: {decoded(key)}: member {name}: {error}") from None
        raise


def _text(key: bytes, value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise PenstockError(f"redis-json: {decoded(key)}: {what} is no UTF-8: {error}") from None
