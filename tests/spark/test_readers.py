"""Any reader of ``events`` sees each row once after every step of a merge, wherever one is interrupted."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest

from penstock.spark import archive, claims
from penstock.spark.archive import EVENTS, RECENT
from penstock.spark.sql import connect
from services.pipeline import merging
from services.pipeline.merging import Merger
from tests.spark import SparkSession
from tests.spark.micro_batches import NAMES, directories, expected, ids, small, write

Seen = Counter[tuple[str, str]]
WORDS: Final = ["namespace", "id"]
MANY: Final = 8


def by_duckdb(found: str) -> Seen:
    query = "SELECT namespace, id FROM read_parquet(?, hive_partitioning = true)"
    return Counter(duckdb.execute(query, [found]).fetchall())


def by_polars(found: str) -> Seen:
    return Counter(pl.read_parquet(found, columns=WORDS, hive_partitioning=True).iter_rows())


def by_pandas(found: str) -> Seen:
    rows = pd.read_parquet(found.partition("*")[0], columns=WORDS)
    return Counter(zip(rows["namespace"], rows["id"], strict=True))


def by_pyarrow(found: str) -> Seen:
    rows = ds.dataset(found.partition("*")[0], partitioning="hive")
    return Counter((row["namespace"], row["id"]) for row in rows.to_table(WORDS).to_pylist())


READERS: Final = (by_duckdb, by_polars, by_pandas, by_pyarrow)


class KilledError(Exception):
    """The process ended here."""


class Steps:
    """Lets readers look before and after each change that a merge makes to files, and ends it before one of them."""

    def __init__(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, many: int, *, atomic: bool, end: int | None = None
    ) -> None:
        self.archive, self.taken = place, 0
        self.all_rows = expected(*range(many))
        self._before, self._end = Seen(), end
        monkeypatch.setattr(merging, "FILE_ROWS", 3 * many // 2)
        monkeypatch.setattr(merging, "write_claim", self._around(claims.write_claim))
        monkeypatch.setattr(merging, "delete", self._around(archive.delete))
        monkeypatch.setattr(
            merging, "move", self._around(archive.move) if atomic else lambda _, *words: self._copy(*words)
        )

    def look(self) -> None:
        """Check what readers see: everything once, and of ``events`` alone nothing twice or no more."""
        self.taken += 1
        with connect(str(self.archive)) as connection:
            assert Counter(connection.execute("SELECT namespace, id FROM events").fetchall()) == self.all_rows
        if [*self.archive.glob(f"{EVENTS}/**/*.parquet")]:
            seen, *others = [reader(f"{self.archive}/{EVENTS}/**/*.parquet") for reader in READERS]
            assert all(other == seen for other in others)
            assert self._before <= seen <= self.all_rows
            self._before = seen
        else:
            assert not self._before
        if self.taken == self._end:
            raise KilledError

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            self.look()
            result = function(*words, **named)
            self.look()
            return result

        return call

    def _copy(self, source: str, target: str) -> None:
        """Rename as an object store does: each file appears at once, one after the other; then the source goes."""
        place = Path(source)
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            to = Path(target) / file.name if place.is_dir() else Path(target)
            to.parent.mkdir(parents=True, exist_ok=True)
            Path(shutil.copy(file, self.archive / "copy")).replace(to)
            self.look()
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
        self.look()


@pytest.mark.parametrize("atomic", [True, False])
def test_each_reader_sees_each_row_once_after_each_step_of_a_merge(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    write(spark, tmp_path, *map(small, range(MANY)))
    merger = Merger(spark, str(tmp_path))
    steps = Steps(tmp_path, monkeypatch, MANY, atomic=atomic)
    assert merger.merge("abcdef12", MANY) == MANY
    steps.look()
    assert steps.taken > 2 * MANY
    assert by_duckdb(f"{tmp_path}/{EVENTS}/**/*.parquet") == steps.all_rows
    assert len([*tmp_path.glob(f"{EVENTS}/**/*.parquet")]) == 2 * len(NAMES)


def test_what_a_killed_pipeline_has_left_is_no_row_for_other_readers(spark: "SparkSession", tmp_path: Path) -> None:
    write(spark, tmp_path, small(0))
    merger = Merger(spark, str(tmp_path))
    merger.merge("abcdef12", 1)
    shutil.copytree(tmp_path / EVENTS, tmp_path / "left")
    (tmp_path / "left").rename(tmp_path / EVENTS / ".spark-staging-1")
    Merger(spark, str(tmp_path))
    assert [by_duckdb(f"{tmp_path}/{EVENTS}/**/*.parquet"), ids(spark, tmp_path)] == 2 * [expected(0)]


@pytest.mark.parametrize("atomic", [True, False])
def test_the_next_merge_finishes_what_was_interrupted_at_any_step(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    seed = tmp_path / "seed"
    write(spark, seed, small(0), small(1))
    for end in range(1, 60):
        place = Path(shutil.copytree(seed, tmp_path / str(end)))
        with monkeypatch.context() as patched:
            merger = Merger(spark, str(place))
            steps = Steps(place, patched, 2, atomic=atomic, end=end)
            try:
                merger.merge("abcdef12", 2)
                break
            except KilledError:
                pass
        if end % 5 == 1:
            assert ids(spark, place) == steps.all_rows, end
        with monkeypatch.context() as patched:
            then = Steps(place, patched, 2, atomic=atomic)
            then._before = steps._before
            Merger(spark, str(place)).merge("abcdef12", 2)
            then.look()
        assert by_duckdb(f"{place}/{EVENTS}/**/*.parquet") == steps.all_rows, end
        assert directories(place, RECENT[EVENTS]) == [], end
        assert not [*place.glob("recent*/_publishing")], end
        shutil.rmtree(place)
    else:
        pytest.fail("it never came to an end")
    assert end > 15
