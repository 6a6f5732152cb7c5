"""Sink for strings, sets and sorted sets: SET, SADD and ZADD, whose repetition changes nothing."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType
from redis import Redis

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError, WrongOption
from penstock.core.raw_connection import Command
from penstock.spark.fields import FLOAT, WHOLE
from penstock.spark.options import Options
from penstock.spark.sinks.at_once import AtOnce
from penstock.spark.sources.keys import STRING, Kind
from penstock.spark.staging import checked

OPTIONS: Final = frozenset({"url", "keyPrefix", "ttl"})


class KeySink(AtOnce):
    """Writes a string for each row, or adds a member."""

    def __init__(self, kind: Kind, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        options = Options(kind.format, given, OPTIONS)
        self.url = options.url()
        self._kind = kind
        self._prefix = encoded(options.text("keyPrefix", ""))
        self._life = options.whole("ttl", 0, least=0)
        self.in_transactions = bool(self._life) and kind != STRING
        if overwrite and kind != STRING:
            raise WrongOption(f"{kind.format}: mode overwrite (or complete): members are added: expected append")
        wanted: dict[str, tuple[type, ...]] = {"key": (StringType,), kind.value: (StringType, BinaryType)}
        wanted |= {"score": (*FLOAT, *WHOLE)} if kind.has_scores else {}
        types = {field.name: field.dataType for field in schema}
        if types.keys() != wanted.keys() or not all(isinstance(types[name], wanted[name]) for name in wanted):
            found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
            raise WrongOption(f"{kind.format}: columns {found}: expected {kind.ddl(True)}; {kind.value} may be binary")

    def groups(self, batch: pa.RecordBatch) -> list[list[Command]]:
        for name in batch.schema.names:
            if batch.column(name).null_count:
                raise PenstockError(f"{self._kind.format}: column {name}: a row has null")
        keys = [self._prefix + key for key in batch.column("key").cast(pa.binary()).to_pylist()]
        values: list[bytes] = batch.column(self._kind.value).cast(pa.binary()).to_pylist()
        if self._kind == STRING:
            life: tuple[Any, ...] = ("EX", self._life) if self._life else ()
            return [[("SET", key, value, *life)] for key, value in zip(keys, values, strict=True)]
        words: dict[bytes, list[Any]] = {}
        if self._kind.has_scores:
            for key, score, value in zip(keys, batch.column("score").to_pylist(), values, strict=True):
                words.setdefault(key, []).extend((repr(score), value))
        else:
            for key, value in zip(keys, values, strict=True):
                words.setdefault(key, []).append(value)
        add = "ZADD" if self._kind.has_scores else "SADD"
        expire = self._life
        return [[(add, key, *more), *([("EXPIRE", key, expire)] if expire else [])] for key, more in words.items()]

    def check(self, redis: "Redis", key: bytes, reply: Any) -> None:
        checked(redis, reply, key, self._kind.type)
