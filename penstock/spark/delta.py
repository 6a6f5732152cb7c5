"""Export of an archive's events to a Delta table, without Spark and Java.

What is published below ``events`` never changes, so each directory is exported once, whole. Rows and the note of what
has been exported are one transaction of Delta: an application (``penstock:QUERY``) whose version is the last
micro-batch up to which the table has everything. The names of later directories are compared with what is in the
table, so nothing depends on when an export ended, or was killed. Two exports at a time have the same application, so
Delta refuses the second commit.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from time import time
from typing import Final

from penstock.base.errors import PenstockError
from penstock.base.extras import extra
from penstock.spark.archive import DDL
from penstock.spark.claims import Batches
from penstock.spark.files import Files, Part

with extra("delta"):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError

SETTLED_SECONDS: Final = 600.0
"""A directory of this age proves that earlier ones can be seen, also through a network file system's cache."""
APPLICATION: Final = "penstock"
BATCH_ROWS: Final = 65_536
TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
    "date": pa.date32(),
}
SCHEMA: Final = pa.schema([(name, TYPES[kind]) for name, kind in (word.split() for word in DDL.split(", "))])


class ExportFailed(PenstockError):
    """The table cannot be written; the message says why, and nothing of the last step is in it."""


def export(directory: str, target: str) -> int:
    """Append to the Delta table ``target`` the published events that it lacks; return how many those are.

    ``target`` is a directory or a URL; the table is made if nothing is there. Each day is one commit. Raise
    ``NoArchive``, ``ExportFailed``.
    """
    newest = _newest(directory)
    return sum(_days(directory, _table(target), newest))


def _newest(directory: str) -> dict[str, int]:
    """Return the last micro-batch of each query up to which all can be seen. To be called before files are listed."""
    newest: dict[str, int] = {}
    settled, files = time() - SETTLED_SECONDS, Files.of(directory)
    for each in files.published:
        if each.batches and each.changed < settled:
            newest[each.batches.query] = max(each.batches.last, newest.get(each.batches.query, -1))
    for waiting in map(Batches.of, files.recent):
        if waiting and waiting.query in newest:  # with mergeEvery 0 later ones may be published before
            newest[waiting.query] = min(waiting.first - 1, newest[waiting.query])
    return newest


def _table(target: str) -> DeltaTable:
    """Return the table, which is made if nothing is there. Raise ``ExportFailed`` if something else is."""
    local = target.removeprefix("file://")
    path = None if "://" in local else Path(local)
    try:
        if path and path.exists() and not (path.is_dir() and (_is_empty(path) or DeltaTable.is_deltatable(target))):
            raise ExportFailed(f"{target} is neither a Delta table nor an empty directory: name another one")
        DeltaTable.create(target, SCHEMA, mode="ignore", partition_by=["date"], name="Penstock's events")
        table = DeltaTable(target)
    except (DeltaError, OSError) as error:
        raise ExportFailed(f"{target}: {_reason(error)}") from error
    if lacking := {name for name in SCHEMA.names if name not in {each.name for each in table.schema().fields}}:
        raise ExportFailed(f"{target} is a table of something else: it has no {', '.join(sorted(lacking))}")
    return table


def _is_empty(path: Path) -> bool:
    """Return whether ``path`` has nothing, or what an export has left that was killed as it made the table."""
    return all(each.name == "_delta_log" for each in path.iterdir())


def _days(directory: str, table: DeltaTable, newest: Mapping[str, int]) -> Iterator[int]:
    """Commit the missing events of one day after another; yield how many each has."""
    parts = Files.of(directory).published
    queries = {each.batches.query for each in parts if each.batches}
    former = {query: _version(table, query) for query in queries}
    new = [each for each in parts if each.batches is None or each.batches.last > former[each.batches.query]]
    seen = {query: max(former[query], newest.get(query, -1)) for query in queries}
    days = [(day, list(several)) for day, several in groupby(sorted(new, key=attrgetter("date")), attrgetter("date"))]
    todo = [lacking for day, several in days if (lacking := _lacking(table, day, several))]
    for number, lacking in enumerate(todo, 1):
        last = number == len(todo)
        yield _commit(table, _Rows(lacking), seen if last else former, even_without_rows=last and seen != former)


def _version(table: DeltaTable, query: str) -> int:
    version = table.transaction_version(_application(query))
    return -1 if version is None else int(version)


def _lacking(table: DeltaTable, day: str, parts: Iterable[Part]) -> list[Part]:
    """Return those of ``parts``, of one day, that the table lacks."""
    # Not by a dataset of pyarrow: its threads may still call Python as the process ends, which aborts it.
    query = f"SELECT DISTINCT namespace, batch FROM archived WHERE date = DATE '{date.fromisoformat(day)}'"
    names = pa.table(QueryBuilder().register("archived", table).execute(query).read_all())
    known = set(zip(*(column.to_pylist() for column in names.columns), strict=True))
    return [each for each in parts if (each.namespace, each.batch) not in known]


class _Rows:
    """The rows to append, read file by file."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = parts
        self.count = 0
        """How many have been read."""
        self.error: Exception | None = None
        """Why reading has ended early."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of some size, however small the files are; none if nothing is lacking."""
        waiting, count = list[pa.RecordBatch](), 0
        try:
            for each in self._read():
                waiting.append(each)
                count += each.num_rows
                if count >= BATCH_ROWS:
                    yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
                    waiting, count = [], 0
            if count:
                yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
        except (OSError, pa.ArrowException) as error:
            self.error = error
            raise

    def _read(self) -> Iterator[pa.RecordBatch]:
        for part in self._parts:
            for path in part.files:
                with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                    for batch in file.iter_batches(BATCH_ROWS):
                        self.count += batch.num_rows
                        yield _converted(batch, part)


def _converted(batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
    """Return the columns of ``SCHEMA``: null if the file of an older version lacks one."""
    same = {"date": date.fromisoformat(part.date), "namespace": part.namespace, "batch": part.batch}

    def column(field: pa.Field) -> pa.Array:
        if field.name in same:
            return pa.repeat(pa.scalar(same[field.name], field.type), batch.num_rows)
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        return batch[field.name].cast(field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in SCHEMA], schema=SCHEMA)


def _application(query: str) -> str:
    return f"{APPLICATION}:{query}"


def _commit(table: DeltaTable, rows: _Rows, versions: Mapping[str, int], *, even_without_rows: bool) -> int:
    """Append ``rows``, and note the ``versions``, in one transaction; return how many rows those are.

    Raise ``ExportFailed``.
    """
    noted = [Transaction(APPLICATION, 0), *(Transaction(_application(query), n) for query, n in versions.items())]
    properties = CommitProperties(app_transactions=noted)
    batches = rows.batches()
    try:
        first = next(batches, None)
        if first is not None or even_without_rows:
            reader = pa.RecordBatchReader.from_batches(SCHEMA, chain([first] if first is not None else [], batches))
            write_deltalake(table, reader, mode="append", commit_properties=properties)
    except (DeltaError, OSError, pa.ArrowException) as error:
        if isinstance(error, CommitFailedError):
            raise ExportFailed(f"another export has written meanwhile: try again ({_reason(error)})") from error
        raise ExportFailed(_reason(rows.error or error)) from error
    return rows.count


def _reason(error: Exception) -> str:
    """Return the message of an error of Delta, which has colours and several lines, as one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|\u21b3", " ", str(error)).split())
