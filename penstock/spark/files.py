"""The files that hold each row of an archive once, found without Spark, for any reader of Parquet.

What is below ``events`` is there for good, and any pattern finds it. These functions also find what is more recent.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from penstock.errors import NoArchive, Unsuitable
from penstock.spark.archive import EVENTS, RECENT, Batches
from penstock.spark.claims import CLAIM, Claim

MAX_LISTINGS: Final = 100
"""Maximum number of listings of a directory from which files go."""


@dataclass(frozen=True)
class Part:
    """A directory of one or more micro-batches with the events of a day and a namespace."""

    date: str
    namespace: str
    batch: str
    files: Sequence[str]
    changed: float
    """When its files were last changed (s since the epoch)."""

    @property
    def batches(self) -> Batches | None:
        """The micro-batches, or None if a pipeline has not named the directory."""
        return Batches.of(self.batch)


def files_of(directory: str) -> list[str]:
    """Return the files of the events of an archive on this machine, which have each row once.

    If a file below ``recent`` is gone when it is read, the pipeline has published it: call this again and read the new
    list. Raise ``NoArchive``, or ``Unsuitable`` if files change faster than they can be listed.
    """
    return sorted(file for part in parts_of(directory) for file in part.files)


def parts_of(directory: str) -> Iterator[Part]:
    """Yield the directories that have each row once. Raise ``NoArchive``, ``Unsuitable``, as ``files_of``."""
    archive = Path(directory.removeprefix("file://"))
    roots = [archive / root for root in (RECENT[EVENTS], EVENTS)]
    if not any(root.is_dir() for root in roots):
        raise NoArchive(f"{roots[-1]}: there is no archive; expected the directory that a pipeline writes")
    places = {place.relative_to(root) for root in roots for place in root.glob("date=*/namespace=*")}
    for place in sorted(places):
        date, namespace = (unquote(name.partition("=")[2]) for name in place.parts)
        for path, (sizes, changed) in _listing(*(root / place for root in roots)).items():
            batch = unquote(path.name.partition("=")[2])
            yield Part(date, namespace, batch, [str(path / name) for name in sorted(sizes)], changed)


Found = dict[Path, tuple[Mapping[str, int], float]]
"""Directories of micro-batches: the sizes (bytes) of their files, and when they were changed (s since the epoch)."""


def _listing(recent: Path, published: Path) -> Found:
    """Return the directories of a place that have each row once."""
    for _ in range(MAX_LISTINGS):
        try:
            before = _directories(recent)
            after = _directories(published)  # in this order: rows go from the first to the second
        except FileNotFoundError:
            continue
        if claim := _claim(recent / CLAIM):
            target = published / f"batch={claim.batches.name}"
            if target in after and claim.is_whole(after[target][0]):
                before = {path: found for path, found in before.items() if path.name[6:] not in claim.covered}
            else:
                after.pop(target, None)
        return before | after
    raise Unsuitable(f"{recent}: files come and go faster than they can be listed")


def _directories(place: Path) -> Found:
    if not place.is_dir():
        return {}
    with os.scandir(place) as found:
        return {Path(each.path): _data_files(each) for each in found if each.name.startswith("batch=")}


def _data_files(directory: "os.DirEntry[str]") -> tuple[Mapping[str, int], float]:
    with os.scandir(directory.path) as found:
        files = [each for each in found if each.name.endswith(".parquet") and each.name[0] not in "._"]
        return {each.name: each.stat().st_size for each in files}, directory.stat().st_mtime


def _claim(file: Path) -> Claim | None:
    try:
        return Claim.of(file.read_bytes())
    except FileNotFoundError:
        return None
