"""Sources for strings, sets and sorted sets, for batch jobs: a row for each string, or for each member."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType
from redis import Redis

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError, WrongOption
from penstock.core.raw_connection import Command
from penstock.spark.options import Options, exchange
from penstock.spark.sources.tables import TableReader
from penstock.spark.staging import checked

OPTIONS: Final = frozenset({"url", "keys", "keyPrefix", "text", "partitions", "minPartitions"})
SCANNED: Final = 1_000
"""Members of a set that one command reads, about."""


@dataclass(frozen=True)
class Kind:
    """A type of the server, and the columns of its table after ``key``."""

    format: str
    type: str
    value: str
    scan: str = ""
    """The command that reads members; none for strings."""

    @property
    def has_scores(self) -> bool:
        return self.type == "zset"

    def ddl(self, text: bool) -> str:
        score = ", score double" * self.has_scores
        return f"key string, {self.value} {'string' if text else 'binary'}{score}"


STRING: Final = Kind("redis-string", "string", "value")
SET: Final = Kind("redis-set", "set", "member", "SSCAN")
SORTED_SET: Final = Kind("redis-zset", "zset", "member", "ZSCAN")


class KeyReader(TableReader):
    """Reads strings, or the members of sets."""

    def __init__(self, kind: Kind, given: Mapping[str, str], schema: StructType) -> None:
        options = Options(kind.format, given, OPTIONS)
        super().__init__(options, kind.type)
        self._kind = kind
        self._text = options.truth("text", True)
        found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        if found != kind.ddl(self._text):
            raise WrongOption(f"{kind.format}: schema: {found}: expected {kind.ddl(self._text)}; text=false for binary")

    def rows(self, redis: "Redis", keys: list[bytes]) -> Iterator[pa.RecordBatch]:
        for found, rows in self._members(redis, keys) if self._kind.scan else self._strings(redis, keys):
            yield self._batch(found, rows)

    def _strings(self, redis: "Redis", keys: list[bytes]) -> Iterator[tuple[list[bytes], list[Any]]]:
        replies = self._replies(redis, keys, [("GET", key) for key in keys])
        found = [(key, value) for key, value in zip(keys, replies, strict=True) if value is not None]
        yield [key for key, _ in found], [value for _, value in found]

    def _members(self, redis: "Redis", keys: list[bytes]) -> Iterator[tuple[list[bytes], list[Any]]]:
        """Yield the members of ``keys``, each once, though a scan may return one again."""
        cursors: dict[bytes, bytes] = dict.fromkeys(keys, b"0")
        seen: dict[bytes, set[bytes]] = {key: set() for key in keys}
        while cursors:
            commands: list[Command] = [(self._kind.scan, key, at, "COUNT", SCANNED) for key, at in cursors.items()]
            names: list[bytes] = []
            rows: list[Any] = []
            for key, (cursor, words) in zip([*cursors], self._replies(redis, [*cursors], commands), strict=True):
                scores = words[1::2] if self._kind.has_scores else words
                for member, score in zip(words[:: 1 + self._kind.has_scores], scores, strict=True):
                    if member not in seen[key]:
                        seen[key].add(member)
                        names.append(key)
                        rows.append((member, float(score)) if self._kind.has_scores else member)
                cursors[key] = cursor
                if cursor == b"0":
                    del cursors[key], seen[key]
            yield names, rows

    def _replies(self, redis: "Redis", keys: Sequence[bytes], commands: list[Command]) -> list[Any]:
        replies = exchange(redis, commands) if commands else []
        return [checked(redis, reply, key, self._kind.type) for key, reply in zip(keys, replies, strict=True)]

    def _batch(self, keys: list[bytes], rows: list[Any]) -> pa.RecordBatch:
        values = [row[0] for row in rows] if self._kind.has_scores else rows
        columns = [
            self._as_text("its name", keys, [key[len(self._prefix) :] for key in keys]),
            self._as_text(f"a {self._kind.value}", keys, values) if self._text else pa.array(values, pa.binary()),
        ]
        columns += [pa.array([row[1] for row in rows], pa.float64())] if self._kind.has_scores else []
        return pa.RecordBatch.from_arrays(columns, ["key", self._kind.value, "score"][: len(columns)])

    def _as_text(self, what: str, keys: list[bytes], values: list[bytes]) -> pa.Array:
        try:
            return pa.array(values, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            for key, value in zip(keys, values, strict=True):
                try:
                    value.decode()
                except UnicodeDecodeError:
                    problem = f"{self._kind.format}: {decoded(key)}: {what} is no UTF-8: {value!r}"
                    raise PenstockError(f"{problem}. Read it with text=false") from None
            raise
