"""Helpers for tests of the pipeline: its keys and its archive."""

from itertools import chain
from pathlib import Path
from typing import Any

from penstock.base.keys import Keys
from penstock.spark.files import Files

TIMEOUT_SECONDS = 300
"""Longest wait; enough for Spark to start beside others."""
PIPE = Keys("pipe")


def archived(redis: Any) -> int:
    return int(redis.hget(PIPE.metric("pipeline"), "count") or 0)


def events_in(place: Path) -> list[dict[str, Any]]:
    """Return every row of the archive, sorted by namespace and number."""
    files = Files.of(str(place / "archive"))
    lists = ([file for part in files.published for file in part.files], [*chain(*files.recent.values())])
    rows = [row for some in lists if some for row in table(some)]
    return sorted(rows, key=lambda row: (row["namespace"], row["number"] or 0, row["entry"]))


def malformed_in(place: Path) -> list[dict[str, Any]]:
    return table(place / "archive/_malformed")


def table(place: Path | list[str]) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    rows: list[dict[str, Any]] = ds.dataset(place, partitioning="hive").to_table().to_pylist()
    return rows
