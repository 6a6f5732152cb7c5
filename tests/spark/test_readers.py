"""DuckDB, Polars and pandas see each row of an archive once, after every step of a merge."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pandas as pd
import polars as pl
import pytest

from penstock.spark import merged
from penstock.spark.files import files_of
from services.pipeline import merging
from services.pipeline.merging import MIN_DIRECTORIES, Merger
from tests.spark import pytestmark  # noqa: F401
from tests.spark.micro_batches import NAMES, directories, expected, small, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Seen = Counter[tuple[str, str]]
QUERY: Final = "SELECT namespace, id FROM read_parquet(?, hive_partitioning = true)"


def by_duckdb(files: list[str]) -> Seen:
    return Counter(duckdb.execute(QUERY, [files]).fetchall())


def by_polars(files: list[str]) -> Seen:
    return Counter(pl.read_parquet(files, columns=["namespace", "id"], hive_partitioning=True, glob=False).iter_rows())


def by_pandas(files: list[str]) -> Seen:
    rows = pd.read_parquet(files, columns=["namespace", "id"])
    return Counter(zip(rows["namespace"], rows["id"], strict=True))


READERS: Final = (by_duckdb, by_polars, by_pandas)


class Steps:
    """Stops a merge before and after each change of a directory, and lets all readers look."""

    def __init__(self, archive: Path, all_rows: Seen) -> None:
        self.archive, self.all_rows, self.taken = archive, all_rows, 0
        self._before = files_of(str(archive))

    def look(self) -> None:
        """Check the files listed now, and those listed one step ago: they give the same, or one of them is gone."""
        self.taken += 1
        now = files_of(str(self.archive))
        gone = [file for file in self._before if not Path(file).exists()]
        for reader in READERS:
            assert reader(now) == self.all_rows, (reader.__name__, self.taken)
            if not gone:
                assert reader(self._before) == self.all_rows, (reader.__name__, self.taken)
            else:
                with pytest.raises((duckdb.IOException, FileNotFoundError)):
                    reader(self._before)
        self._before = now

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            self.look()
            result = function(*words, **named)
            self.look()
            return result

        return call

    def move(self, source: str, target: str) -> None:
        """Rename a directory file by file, as an object store does."""
        Path(target).mkdir()
        for file in sorted(Path(source).iterdir()):
            shutil.move(file, target)
            self.look()
        Path(source).rmdir()


@pytest.fixture
def steps(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES)))
    watch = Steps(tmp_path, expected(*range(MIN_DIRECTORIES)))
    monkeypatch.setattr(merging, "FILE_ROWS", 3 * MIN_DIRECTORIES // 2)
    monkeypatch.setattr(merging, "write_manifest", watch.around(merged.write_manifest))
    monkeypatch.setattr(Merger, "_delete", watch.around(Merger._delete))
    return watch


@pytest.mark.parametrize("atomic", [True, False])
def test_each_reader_sees_each_row_once_after_each_step_of_a_merge(
    spark: "SparkSession", steps: Steps, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    rename = steps.around(Merger._rename) if atomic else lambda _, source, target: steps.move(source, target)
    monkeypatch.setattr(Merger, "_rename", rename)
    assert Merger(spark, str(steps.archive), 0).merge("abcdef12", MIN_DIRECTORIES)
    assert len(directories(steps.archive)) == len(NAMES)
    assert steps.taken >= len(NAMES) * 2 * (1 + MIN_DIRECTORIES)
    assert all(reader(files_of(str(steps.archive))) == steps.all_rows for reader in READERS)


def test_a_pattern_sees_rows_twice_before_the_covered_directories_are_deleted(
    spark: "SparkSession", steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is there for a reason; and the steps above do stop where it matters."""
    counts = set[int]()
    look = steps.look

    def count() -> None:
        look()
        counts.add(len(pd.read_parquet(steps.archive / "events", columns=["id"])))

    monkeypatch.setattr(steps, "look", count)
    Merger(spark, str(steps.archive), 0).merge("abcdef12", MIN_DIRECTORIES)
    assert max(counts) > steps.all_rows.total()
