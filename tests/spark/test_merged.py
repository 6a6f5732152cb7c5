"""Merged directories that are incomplete or have no manifest hide no row."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PenstockError
from penstock.spark.archive import EVENTS
from penstock.spark.merged import MANIFEST
from services.pipeline import merging
from services.pipeline.merging import MIN_DIRECTORIES, Merger
from tests.spark import pytestmark  # noqa: F401
from tests.spark.micro_batches import NAMES, directories, expected, ids, small, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def interrupted(spark: "SparkSession", place: Path, monkeypatch: pytest.MonkeyPatch, *, files: int) -> None:
    """Merge while a rename copies file by file, as in an object store, and breaks off after some ``files``."""

    def rename(_: Merger, source: str, target: str) -> None:
        Path(target).mkdir()
        for file in sorted(Path(source).glob("*.parquet"))[:files]:
            shutil.copy(file, target)
        raise PenstockError("the store is gone")

    with monkeypatch.context() as patched:
        patched.setattr(merging, "FILE_ROWS", 3 * MIN_DIRECTORIES // 2)
        patched.setattr(Merger, "_rename", rename)
        merger = Merger(spark, str(place), 0)
        with pytest.raises(PenstockError, match="the store is gone"):
            merger.merge("abcdef12", MIN_DIRECTORIES)


@pytest.mark.parametrize("files", [0, 1, 2])
def test_a_rename_that_was_interrupted_hides_no_row_and_the_next_merge_cleans_up(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES)))
    originals = directories(tmp_path)
    interrupted(spark, tmp_path, monkeypatch, files=files)
    (partial,) = set(directories(tmp_path)) - set(originals)
    assert len([*partial.glob("*.parquet")]) == files
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))
    Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES)
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))
    assert {each.name for each in directories(tmp_path)} == {f"batch=abcdef12-000000000..{MIN_DIRECTORIES - 1:09d}"}
    assert spark.read.parquet(str(tmp_path / EVENTS)).count() == expected(*range(MIN_DIRECTORIES)).total()


def test_a_merged_directory_whose_files_are_not_those_of_its_manifest_stands_for_nothing(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES)))
    kept = shutil.copytree(tmp_path / EVENTS, tmp_path / "kept")
    monkeypatch.setattr(merging, "FILE_ROWS", 3 * MIN_DIRECTORIES // 2)
    Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES)
    for merged in directories(tmp_path):
        assert len([*merged.glob("*.parquet")]) == 2
        next(merged.glob("*.parquet")).unlink()
    shutil.copytree(kept, tmp_path / EVENTS, dirs_exist_ok=True)
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))
    for file in tmp_path.glob(f"{EVENTS}/**/{MANIFEST}"):
        file.write_text('{"fi')
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))
    for file in tmp_path.glob(f"{EVENTS}/**/batch=*..*/*.parquet"):
        file.write_bytes(file.read_bytes()[:-20])
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES)), "nor one that was cut off"
    for file in tmp_path.glob(f"{EVENTS}/**/batch=*..*/.*.crc"):
        file.unlink()
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES)), "nor where nothing but its footer tells"


def test_an_older_archive_without_manifests_is_read_and_merged(spark: "SparkSession", tmp_path: Path) -> None:
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES)))
    kept = shutil.copytree(tmp_path / EVENTS, tmp_path / "kept")
    Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES)
    for file in tmp_path.glob(f"{EVENTS}/**/*{MANIFEST}*"):
        file.unlink()
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))
    for namespace in kept.glob("*/*"):  # the deletion had been interrupted
        for each in sorted(namespace.iterdir())[:5]:
            shutil.rmtree(each)
    shutil.copytree(kept, tmp_path / EVENTS, dirs_exist_ok=True)
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))
    assert Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES) == len(NAMES) * (MIN_DIRECTORIES - 5)
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))
