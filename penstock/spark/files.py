"""The files that hold each row of an archive once, found without Spark, for any reader of Parquet.

A list of files, not a pattern: while a pipeline merges files, a pattern matches the merged and the covered ones.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from penstock.errors import NoArchive, Unsuitable
from penstock.spark.archive import EVENTS, Batches
from penstock.spark.merged import MANIFEST, find_stale

MAX_LISTINGS: Final = 100
"""Maximum number of listings of a directory in which files come and go."""

CountRows = Callable[[Sequence[str]], int]
"""Returns how many rows files have, -1 if one cannot be read; needed only if a merged directory has no manifest."""


@dataclass(frozen=True)
class Part:
    """A directory of one or more micro-batches with the events of a day and a namespace."""

    date: str
    namespace: str
    batch: str
    files: Sequence[str]

    @property
    def batches(self) -> Batches | None:
        """The micro-batches, or None if a pipeline has not named the directory."""
        return Batches.of(self.batch)


def files_of(directory: str, count_rows: CountRows | None = None) -> list[str]:
    """Return the files of the events of an archive on this machine, which have each row once.

    If a file is gone when it is read, the pipeline has merged it since: call this again and read the new list. Raise
    ``NoArchive``, or ``Unsuitable`` if files change faster than they can be listed.
    """
    return sorted(file for part in parts_of(directory, count_rows) for file in part.files)


def parts_of(directory: str, count_rows: CountRows | None = None) -> Iterator[Part]:
    """Yield the directories that have each row once. Raise ``NoArchive``, ``Unsuitable``, as ``files_of``.

    What a complete merged directory covers is left out, and so is an incomplete one: see ``penstock.spark.merged``.
    """
    count_rows = count_rows or rows_of_files
    for place in places(directory):
        date, namespace = (unquote(name.partition("=")[2]) for name in place.parts[-2:])
        found = _listing(place)
        stale = _stale(found, count_rows)
        yield from (Part(date, namespace, name, paths) for name, paths in found.items() if name not in stale)


def _stale(found: Mapping[str, list[str]], count_rows: CountRows) -> set[str]:
    """Return the directories of one place, of those ``found`` with their files, that are covered or incomplete."""
    named = {batches: name for name in found if (batches := Batches.of(name))}

    def rows(several: Iterable[Batches]) -> int:
        return count_rows([file for each in several for file in found[named[each]]])

    covered, broken = find_stale(named, lambda each: _is_complete(found[named[each]]), rows)
    return {named[each] for each in covered | broken}


def places(directory: str) -> list[Path]:
    """Return the directories that have directories of micro-batches. Raise ``NoArchive``."""
    events = Path(directory.removeprefix("file://")) / EVENTS
    if not events.is_dir():
        raise NoArchive(f"{events}: there is no archive; expected the directory that a pipeline writes")
    return sorted(events.glob("date=*/namespace=*"))


def batches_in(place: Path) -> dict[str, Path]:
    """Return the directories of micro-batches in one of ``places``, by name."""
    with os.scandir(place) as found:
        return {unquote(each.name[6:]): Path(each.path) for each in found if each.name.startswith("batch=")}


def _listing(place: Path) -> dict[str, list[str]]:
    """Return the files by directory, at a moment at which all of them exist.

    A merge adds a directory and then deletes those it covers. A listing meanwhile may miss both, the next one does not.
    """
    for _ in range(MAX_LISTINGS):
        before = batches_in(place)
        try:
            found = {name: _data_files(path) for name, path in before.items()}
        except FileNotFoundError:
            continue
        if batches_in(place).keys() == before.keys():
            return found
    raise Unsuitable(f"{place}: files come and go faster than they can be listed")


def _data_files(directory: Path) -> list[str]:
    with os.scandir(directory) as found:
        return sorted(each.path for each in found if each.name.endswith(".parquet") and each.name[0] not in "._")


def _is_complete(files: Sequence[str]) -> bool:
    """Return whether a manifest lies beside ``files``, and all files that it names are among them."""
    there = {Path(file).name: Path(file) for file in files}
    try:
        named = json.loads((Path(files[0]).parent / MANIFEST).read_bytes())["files"]
        return all(name in there and there[name].stat().st_size == size for name, size in named.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


def rows_of_files(files: Sequence[str]) -> int:
    """Return how many rows ``files`` have by their footers; -1 if one cannot be read. Raise ``Unsuitable``."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise Unsuitable(
            "an older version has merged files of this archive: pip install pyarrow, to count their rows"
        ) from None
    try:
        return sum(pq.read_metadata(file).num_rows for file in files)
    except (OSError, pa.ArrowException):
        return -1
