"""Sink for JSON documents: JSON.SET of whole documents, or SET; repeating it changes nothing."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType
from redis import Redis

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError
from penstock.core.raw_connection import Command
from penstock.spark.options import Options
from penstock.spark.sinks.at_once import AtOnce
from penstock.spark.sources.documents import DOCUMENT, STORAGES, check_reply, parsed, types_of

OPTIONS: Final = frozenset({"url", "keyColumn", "keyPrefix", "storage", "ttl"})


class DocumentSink(AtOnce):
    """Writes a document for each row; the column ``keyColumn`` holds its key."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options("redis-json", given, OPTIONS)
        self.url = options.url()
        self._column = options.text("keyColumn", "key")
        self._prefix = encoded(options.text("keyPrefix", ""))
        self._plain = options.one_of("storage", "json", STORAGES) == "string"
        self._life = options.whole("ttl", 0, least=0)
        self.in_transactions = bool(self._life) and not self._plain
        types_of(schema, self._column)

    def groups(self, batch: pa.RecordBatch) -> list[list[Command]]:
        return [self._commands(*each) for each in self._documents(batch)]

    def check(self, redis: "Redis", key: bytes, reply: Any) -> None:
        check_reply(redis, key, reply, plain=self._plain)

    def _commands(self, key: bytes, document: str) -> list[Command]:
        life: tuple[Any, ...] = ("EX", self._life) if self._life else ()
        if self._plain:
            return [("SET", key, document, *life)]
        return [("JSON.SET", key, "$", document), *([("EXPIRE", key, self._life)] if self._life else [])]

    def _documents(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, str]]:
        """Yield the key and the text of each document; a column that is null is no member."""
        for row in batch.to_pylist():
            name = row.pop(self._column)
            if name is None:
                raise PenstockError(f"redis-json: column {self._column}: a row has null, which is no key")
            key = self._prefix + name.encode()
            if [*row] == [DOCUMENT]:
                if row[DOCUMENT] is None:
                    raise PenstockError(f"redis-json: {decoded(key)}: column {DOCUMENT}: null is no document")
                parsed(key, row[DOCUMENT])
                yield key, row[DOCUMENT]
                continue
            members = {member: value for member, value in row.items() if value is not None}
            try:
                yield key, json.dumps(members, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            except ValueError as error:
                raise PenstockError(f"redis-json: {decoded(key)}: {error}") from None
