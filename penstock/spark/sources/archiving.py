"""Source of the pipeline: ``redis-archive``, events as the archive keeps them.

If the archive lies on a file system that is mounted here, the tasks write the files themselves, and a row says what is
in a file. Else a row is an event, for Java to write. Arrow's writer of Parquet takes columns as they are: that is three
times as fast as to hand rows to Java's, and seven times as fast until that is compiled.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from penstock.base.errors import Unsuitable
from penstock.spark.archive import DDL, WRITER
from penstock.spark.masking import masked
from penstock.spark.rollups import cells
from penstock.spark.sources.streams import StreamReader

ROWS_DDL: Final = f"{DDL.rpartition(', ')[0]}, malformed string"
"""Rows of events; those that cannot be archived have ``malformed``."""
FILES_DDL: Final = "file string, events long, malformed long, cells binary"
"""What a task has written: ``<file>.events`` and ``<file>.malformed``, each unless it would be empty.

``cells``: what ``penstock.spark.rollups.cells`` counts in the events, in Arrow's IPC format; null without roll-ups.
"""
KEPT: Final = [word.partition(" ")[0] for word in ROWS_DDL.split(", ")]
EVENTS: Final = KEPT[:-1]
MALFORMED: Final = ["namespace", "entry", "malformed"]
GROUP_BYTES: Final = 64 * 2**20
"""Maximum size of a row group before it is compressed, unless one row is larger: a task holds one of them."""
MAX_NAME: Final = 255 - len("namespace=")
"""Maximum size of a namespace (bytes), escaped as the name of a directory."""
ESCAPED: Final = re.compile(r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Letters that Spark writes as ``%HH`` in names of directories."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the directory of the rows without a value."""
UNSUITABLE: Final = '{"namespace": "no directory can be named after it"}'


class RedisArchive(DataSource):
    """Options: those of ``redis-stream``, and ``directory``, where tasks write files; empty if Java writes the rows.

    ``payloads`` and ``rollups``: true or false. ``mask``: a JSON list of paths.
    """

    @classmethod
    def name(cls) -> str:
        return "redis-archive"

    def schema(self) -> str:
        return FILES_DDL if self.options["directory"] else ROWS_DDL

    def streamReader(self, schema: StructType) -> "ArchivingReader":
        return ArchivingReader(self.options)


class ArchivingReader(StreamReader):
    """Reads micro-batches as they are archived."""

    has_order = False

    def __init__(self, given: Mapping[str, str]) -> None:
        options = dict(given)
        mask: list[str] = json.loads(options.pop("mask"))
        self._mask = mask if options.pop("payloads") == "true" else None
        self._directory, self._rollups = options.pop("directory"), options.pop("rollups") == "true"
        super().__init__(options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        rows = (prepared(batch, self._mask) for batch in super().read(partition) if batch.num_rows)
        return written(rows, self._directory, self._rollups) if self._directory else rows


def prepared(batch: pa.RecordBatch, mask: Sequence[str] | None) -> pa.RecordBatch:
    """Return events with the columns of ``ROWS_DDL``; with ``mask`` None, without their messages."""
    namespace, messages, malformed = (batch.column(name) for name in ("namespace", "message", "malformed"))
    if unsuitable := [name for name in pc.unique(namespace).to_pylist() if is_unsuitable(name)]:
        reason = pc.if_else(pc.is_in(namespace, pa.array(unsuitable)), UNSUITABLE, None)
        malformed = pc.coalesce(malformed, reason)
    messages = pa.nulls(batch.num_rows, pa.binary()) if mask is None else masked(messages, mask)
    found = dict(zip(batch.schema.names, batch.columns, strict=True))
    found |= {"message": messages, "malformed": malformed, "date": batch.column("at").cast(pa.date32())}
    return pa.RecordBatch.from_pydict({name: found[name] for name in KEPT})


def is_unsuitable(namespace: str) -> bool:
    """Return whether no directory can be named after ``namespace``."""
    return namespace in ("", NULL) or "\0" in namespace or len(ESCAPED.sub("%00", namespace).encode()) > MAX_NAME


def written(rows: Iterable[pa.RecordBatch], directory: str, rollups: bool) -> Iterator[pa.RecordBatch]:
    """Write ``rows`` of ``ROWS_DDL`` to files in ``directory``; yield a row of ``FILES_DDL``, none without ``rows``.

    Raise ``Unsuitable`` if there is no such directory.
    """
    if not Path(directory).is_dir():
        problem = "not here: another pipeline has taken over, or this worker of Spark does not share the archive"
        raise Unsuitable(f"{directory}: {problem}")
    name, counted = uuid4().hex, list[pa.Table]()

    def count(group: pa.Table) -> None:
        if rollups:
            counted.append(cells(group))

    with (
        _file(f"{directory}/{name}.events", EVENTS, count) as good,
        _file(f"{directory}/{name}.malformed", MALFORMED) as bad,
    ):
        for batch in rows:
            is_bad = pc.is_valid(batch.column("malformed"))
            if is_bad.true_count:
                bad.add(batch.filter(is_bad))
                batch = batch.filter(pc.invert(is_bad))
            good.add(batch)
    if good.count or bad.count:
        found = {"file": [name], "events": [good.count], "malformed": [bad.count]}
        yield pa.RecordBatch.from_pydict(found | {"cells": pa.array([packed(counted)], pa.binary())})


def packed(tables: list[pa.Table]) -> bytes | None:
    """Return ``tables`` in Arrow's IPC format, None if there are none."""
    if not tables:
        return None
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    return bytes(stream.getvalue())


class _File:
    """A Parquet file, which is written by row groups; without rows there is none."""

    def __init__(self, path: str, columns: list[str], seen: Callable[[pa.Table], None]) -> None:
        self.count = 0
        self._path, self._columns, self._seen = path, columns, seen
        self._rows: list[pa.RecordBatch] = []
        self._size = 0
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        for rows in _parts(batch.select(self._columns)):
            if self._rows and self._size + rows.nbytes > GROUP_BYTES:
                self._write()
            self._rows.append(rows)
            self.count, self._size = self.count + rows.num_rows, self._size + rows.nbytes

    def close(self) -> None:
        if self._rows:
            self._write()
        if self._writer:
            self._writer.close()

    def _write(self) -> None:
        group = pa.Table.from_batches(self._rows)
        if not self._writer:
            self._writer = pq.ParquetWriter(self._path, group.schema, **WRITER)
        self._writer.write_table(group, row_group_size=group.num_rows)
        self._seen(group)
        self._rows, self._size = [], 0


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve ``rows`` until each part fits into a row group, or is one row."""
    if rows.num_rows > 1 and rows.nbytes > GROUP_BYTES:
        half = rows.num_rows // 2
        yield from _parts(rows.slice(0, half))
        yield from _parts(rows.slice(half))
    elif rows.num_rows:
        yield rows


@contextmanager
def _file(path: str, columns: list[str], seen: Callable[[pa.Table], None] = lambda group: None) -> Iterator[_File]:
    """Yield a file, which is deleted after an error; ``seen`` is called with each row group."""
    file = _File(path, columns, seen)
    try:
        yield file
        file.close()
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
