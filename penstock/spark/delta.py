"""Export of an archive's events to a Delta table, without Spark and Java.

Rows and the note of what has been exported are one transaction of Delta: an application (``penstock:QUERY``) whose
version is the first micro-batch that may still have rows to export. Later ones are compared with what is in the table,
so nothing depends on when an export ended, or was killed. Two exports at a time have the same application, so Delta
refuses the second commit.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from time import time
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from penstock.errors import PenstockError
from penstock.spark.archive import DDL, Batches
from penstock.spark.files import Part, parts_of

SETTLED_SECONDS: Final = 600.0
"""A later micro-batch of this age proves that earlier ones can be seen, also through a network file system's cache."""
APPLICATION: Final = "penstock"
BATCH_ROWS: Final = 65_536
MAX_READS: Final = 3
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
IDENTITY: Final = ("entry", "place")


class ExportFailed(PenstockError):
    """The table cannot be written; the message says why, and nothing of the last step is in it."""


def export(directory: str, target: str, say: Callable[[str], object] = lambda _: None) -> int:
    """Append to the Delta table ``target`` the events that it lacks; return how many those are.

    ``target`` is a directory or a URL; the table is made if nothing is there. Each day is one commit. ``say`` is called
    if files were published meanwhile. Raise ``NoArchive``, ``ExportFailed``.
    """
    newest = _newest(directory)
    table = _table(target)
    total = 0
    for left in reversed(range(MAX_READS)):
        try:
            for rows in _days(directory, table, newest):
                total += rows
            break
        except FileNotFoundError:
            if not left:
                raise ExportFailed(f"{directory}: files are published faster than they are read: try again") from None
            say("files of the archive were published meanwhile: reading it again")
    return total


def _newest(directory: str) -> dict[str, int]:
    """Return the last settled micro-batch of each query: what came before it can be seen by now.

    To be called before the files are listed. A pipeline writes its micro-batches one after another.
    """
    newest: dict[str, int] = {}
    settled = time() - SETTLED_SECONDS
    for each in parts_of(directory):
        if each.batches and each.changed < settled:
            newest[each.batches.query] = max(each.batches.last, newest.get(each.batches.query, 0))
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
    parts = list(parts_of(directory))
    queries = {each.batches.query for each in parts if each.batches}
    former = {query: table.transaction_version(_application(query)) or 0 for query in queries}
    new = [each for each in parts if each.batches is None or each.batches.last >= former[each.batches.query]]
    seen = {query: max(former[query], newest.get(query, 0)) for query in queries}
    days = [(day, list(several)) for day, several in groupby(sorted(new, key=attrgetter("date")), attrgetter("date"))]
    todo = [lacking for day, several in days if (lacking := list(_lacking(table, day, several)))]
    for number, lacking in enumerate(todo, 1):
        last = number == len(todo)
        yield _commit(table, _Rows(lacking), seen if last else former, even_without_rows=last and seen != former)


def _lacking(table: DeltaTable, day: str, parts: Iterable[Part]) -> Iterator[tuple[Part, pa.Array | None]]:
    """Yield those of ``parts``, of one day, that the table lacks; with the identities of rows that it has, if any."""
    dataset, that_day = table.to_pyarrow_dataset(), pc.field("date") == date.fromisoformat(day)
    known: dict[str, set[str]] = defaultdict(set)
    for batch in dataset.to_batches(columns=["namespace", "batch"], filter=that_day):
        names = pa.Table.from_batches([batch]).group_by(["namespace", "batch"]).aggregate([])
        for namespace, name in zip(*(column.to_pylist() for column in names.columns), strict=True):
            known[namespace].add(name)
    for part in parts:
        overlapping = {name for name in known[part.namespace] if _overlap(name, part)}
        if any(_has_all(name, part) for name in overlapping):
            continue
        identities = None
        if overlapping:
            here = that_day & (pc.field("namespace") == part.namespace) & pc.field("batch").isin(sorted(overlapping))
            identities = _identities(dataset.to_table(columns=[*IDENTITY], filter=here))
        yield part, identities


def _overlap(name: str, part: Part) -> bool:
    """Return whether rows that were exported from the directory ``name`` may be in ``part``, too."""
    former, now = Batches.of(name), part.batches
    if former is None or now is None:
        return name == part.batch
    return former.query == now.query and former.first <= now.last and now.first <= former.last


def _has_all(name: str, part: Part) -> bool:
    """Return whether the directory ``name``, which is exported whole or not at all, had all rows of ``part``."""
    former, now = Batches.of(name), part.batches
    return former is not None and now is not None and former.covers(now)


def _identities(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Return a string for each event of a namespace, which identifies it."""
    found = pc.binary_join_element_wise(rows["entry"], pc.cast(rows["place"], pa.string()), "/")
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


class _Rows:
    """The rows to append, read file by file."""

    def __init__(self, lacking: Iterable[tuple[Part, pa.Array | None]]) -> None:
        self._lacking = lacking
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
        for part, exported in self._lacking:
            for path in part.files:
                with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                    for batch in file.iter_batches(BATCH_ROWS):
                        rows = _converted(batch, part)
                        if exported is not None:
                            rows = rows.filter(pc.invert(pc.is_in(_identities(rows), exported)))
                        self.count += rows.num_rows
                        yield rows


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

    Raise ``FileNotFoundError``, ``ExportFailed``.
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
        if isinstance(rows.error, FileNotFoundError):
            raise rows.error from None
        if isinstance(error, CommitFailedError):
            raise ExportFailed(f"another export has written meanwhile: try again ({_reason(error)})") from error
        raise ExportFailed(_reason(rows.error or error)) from error
    return rows.count


def _reason(error: Exception) -> str:
    """Return the message of an error of Delta, which has colours and several lines, as one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|\u21b3", " ", str(error)).split())
