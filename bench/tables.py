"""Figures of Spark reading and writing keys as tables, compared with one bare process that pipelines commands."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.figures import Figure
from bench.spark import against_bare, into_nothing, seconds, spark_session
from bench.testbed import Testbed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMANDS: Final = 1_000
"""Commands of the bare process in one round trip."""
MEMBERS: Final = 100
"""Members of a set."""
READ, WRITTEN = 0.7, 0.6
"""The least ratios of the bare process's time to Spark's."""


@dataclass(frozen=True)
class Table:
    """Rows of one format, and what a bare client does in place of Spark."""

    what: str
    format: str
    rows: tuple[str, ...]
    """The columns, as SQL expressions of ``id``, from 0 on."""
    write: Callable[[int], Iterator[tuple[Any, ...]]]
    """Returns the commands that write a number of rows."""
    read: tuple[Any, ...]
    """The command that reads a key, which comes after its name, and its further words."""
    schema: str = ""
    options: tuple[tuple[str, str], ...] = ()
    parse: Callable[[Any], Any] | None = None
    """What a bare client does with a reply."""


def _hset(count: int) -> Iterator[tuple[Any, ...]]:
    for id in range(count):
        yield "HSET", f"bench:{id}", "name", f"user {id}", "hits", id, "total", id / 7


def _set(count: int) -> Iterator[tuple[Any, ...]]:
    for id in range(count):
        yield "SET", f"bench:{id}", f"user {id}"


def _sadd(count: int) -> Iterator[tuple[Any, ...]]:
    for first in range(0, count, MEMBERS):
        yield "SADD", f"bench:{first // MEMBERS}", *(f"user {id}" for id in range(first, first + MEMBERS))


def _zadd(count: int) -> Iterator[tuple[Any, ...]]:
    for first in range(0, count, MEMBERS):
        pairs = ((id / 7, f"user {id}") for id in range(first, first + MEMBERS))
        yield "ZADD", f"bench:{first // MEMBERS}", *(word for pair in pairs for word in pair)


def _set_document(count: int) -> Iterator[tuple[Any, ...]]:
    for id in range(count):
        yield "SET", f"bench:{id}", json.dumps({"name": f"user {id}", "hits": id, "total": id / 7})


_NAME, _USER = "concat('bench:', id) key", "concat('user ', id)"
_SET_NAME = f"concat('bench:', cast(id div {MEMBERS} as string)) key"
_OBJECT = (_NAME, f"{_USER} name", "id hits", "id / 7 total")
_FIELDS = "key string, name string, hits long, total double"
HASHES: Final = Table("hashes", "redis-hash", _OBJECT, _hset, ("HGETALL",), _FIELDS)
OTHERS: Final = (
    Table("strings", "redis-string", (_NAME, f"{_USER} value"), _set, ("GET",)),
    Table("members of sets", "redis-set", (_SET_NAME, f"{_USER} member"), _sadd, ("SMEMBERS",)),
    Table(
        *("members of sorted sets", "redis-zset", (_SET_NAME, f"{_USER} member", "id / 7 score"), _zadd),
        ("ZRANGE", 0, -1, "WITHSCORES"),
    ),
    Table(
        *("JSON documents, kept as strings,", "redis-json", _OBJECT, _set_document, ("GET",), _FIELDS),
        (("storage", "string"),),
        json.loads,
    ),
)


def hashes(bed: Testbed, rounds: int, count: int) -> list[Figure]:
    """Measure reading and writing hashes."""
    with spark_session() as spark:
        return _measured(bed, spark, rounds, count, HASHES)


def others(bed: Testbed, rounds: int, count: int) -> list[Figure]:
    """Measure reading and writing strings, sets, sorted sets and JSON documents."""
    with spark_session() as spark:
        return [figure for table in OTHERS for figure in _measured(bed, spark, rounds, count, table)]


def _measured(bed: Testbed, spark: "SparkSession", rounds: int, count: int, table: Table) -> list[Figure]:
    """Measure Spark and a bare process, alternating."""
    options = {"url": bed.url, **dict(table.options)}
    rows = spark.range(count).selectExpr(*table.rows)
    writer = rows.write.format(table.format).options(**options).mode("append")
    reader = spark.read.format(table.format).options(keys="bench:*", partitions="2", **options)
    load = (reader.schema(table.schema) if table.schema else reader).load
    writer.save()
    assert load().count() == count  # also warms up
    read, written = [], []
    for _ in range(rounds):
        written.append((seconds(lambda: _bare_writes(bed, table, count)), seconds(writer.save)))
        read.append((seconds(lambda: _bare_reads(bed, table)), into_nothing(load())))
    bed.redis.flushall()
    reads, writes = f"{table.read[0]}'s", f"{next(table.write(1))[0]}'s"
    return [
        against_bare(f"{count:,} {table.what} read, bare {reads} time / Spark's", count, read, READ),
        against_bare(f"{count:,} {table.what} written, bare {writes} time / Spark's", count, written, WRITTEN),
    ]


def _bare_writes(bed: Testbed, table: Table, count: int) -> None:
    wire = bed.redis.pipeline(transaction=False)
    for command in table.write(count):
        wire.execute_command(*command)
        if len(wire) == COMMANDS:
            wire.execute()
    wire.execute()


def _bare_reads(bed: Testbed, table: Table) -> None:
    keys = list(bed.redis.scan_iter(match="bench:*", count=1_000))
    for first in range(0, len(keys), COMMANDS):
        wire = bed.redis.pipeline(transaction=False)
        for key in keys[first : first + COMMANDS]:
            wire.execute_command(table.read[0], key, *table.read[1:])
        for reply in wire.execute():
            if table.parse:
                table.parse(reply)
