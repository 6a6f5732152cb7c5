"""The files that hold each row of an archive once, found without Spark.

What is below ``events`` is there for good, and any reader of Parquet finds it. These functions also find what is more
recent.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from penstock.base.errors import NoArchive, Unsuitable
from penstock.spark.archive import EVENTS, RECENT, without_scheme
from penstock.spark.claims import PUBLISHED, PUBLISHING, Batches, Claim

MAX_LISTINGS: Final = 100
"""Maximum number of listings of a directory from which files go."""


@dataclass(frozen=True)
class Part:
    """A directory of published events of a day and a namespace."""

    date: str
    namespace: str
    batch: str
    files: Sequence[str]
    changed: float
    """When it came to its place (s since the epoch)."""

    @property
    def batches(self) -> Batches | None:
        """The micro-batches, or None if a pipeline has not named the directory."""
        return Batches.of(self.batch)


@dataclass(frozen=True)
class Files:
    """The files of the events of an archive, which have each row once.

    If a recent file is gone when it is read, the pipeline has published it: list all files again.
    """

    recent: Mapping[str, Sequence[str]]
    """By the name of the micro-batch."""
    published: Sequence[Part]

    @classmethod
    def of(cls, directory: str) -> "Files":
        """List an archive on this machine. Raise ``NoArchive``, ``Unsuitable`` if files change faster than that."""
        if "://" in without_scheme(directory):
            raise NoArchive(
                f"{directory}: expected a directory of this machine; this command reads no other file system"
            )
        archive = Path(without_scheme(directory))
        recent, published = archive / RECENT[EVENTS], archive / EVENTS
        if not (recent.is_dir() or published.is_dir()):
            raise NoArchive(f"{published}: there is no archive; expected the directory that a pipeline writes")
        # In this order: rows go from the first to the second, and a claim comes before its rows and goes after them.
        before = _recent(recent)
        if whole := _claim(recent / PUBLISHED):
            before = {name: files for name, files in before.items() if not whole.has_published(name)}
        after = [_part(path) for path in sorted(published.glob("date=*/namespace=*/batch=*"))]
        claim = _claim(recent / PUBLISHING)
        if claim and not (whole and whole.has_published(claim.batches.name)):
            after = [part for part in after if part.batch != claim.batches.name]
        return cls(before, after)


def _recent(directory: Path) -> dict[str, list[str]]:
    for _ in range(MAX_LISTINGS):
        try:
            return {unquote(path.name[6:]): _data_files(path)[0] for path in sorted(directory.glob("batch=*"))}
        except FileNotFoundError:
            continue
    raise Unsuitable(f"{directory}: files come and go faster than they can be listed")


def _part(path: Path) -> Part:
    date, namespace, batch = (unquote(name.partition("=")[2]) for name in path.parts[-3:])
    return Part(date, namespace, batch, *_data_files(path))


def _data_files(directory: Path) -> tuple[list[str], float]:
    with os.scandir(directory) as found:
        files = [each.path for each in found if each.name.endswith(".parquet") and each.name[0] not in "._"]
    return sorted(files), directory.stat().st_ctime


def _claim(file: Path) -> Claim | None:
    try:
        return Claim.of(file.read_bytes())
    except FileNotFoundError:
        return None
