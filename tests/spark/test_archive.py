"""The archive: each row is read once, whatever is merged meanwhile and wherever a merge is interrupted."""

import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli._archive import MAX_READS, retry_reads
from penstock.errors import PenstockError, Unsuitable
from penstock.keys import Keys
from penstock.spark.archive import EVENTS, MINUTES, Batches, events
from penstock.spark.merged import find_stale
from penstock.spark.reasons import reason_of_error
from services.pipeline.archive import Archive
from services.pipeline.merging import MIN_DIRECTORIES, Merger, to_merge
from services.pipeline.settings import Settings
from tests.spark import pytestmark  # noqa: F401
from tests.spark.micro_batches import NAMES, NOW, directories, expected, ids, small, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG_AGO: Final = NOW - timedelta(days=30)


def test_many_micro_batches_become_one_directory_without_losing_a_row(spark: "SparkSession", tmp_path: Path) -> None:
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES + 2)))
    merger = Merger(spark, str(tmp_path), 0)
    assert merger.merge("abcdef12", MIN_DIRECTORIES - 1) == 0, "seven of them have settled"
    assert merger.merge("abcdef12", MIN_DIRECTORIES) == len(NAMES) * (MIN_DIRECTORIES - 1)
    assert merger.merge("abcdef12", MIN_DIRECTORIES) == 0
    for namespace in tmp_path.glob(f"{EVENTS}/*/*"):
        names = [
            f"abcdef12-000000000..{MIN_DIRECTORIES - 1:09d}",
            f"abcdef12-{MIN_DIRECTORIES:09d}",
            f"abcdef12-{MIN_DIRECTORIES + 1:09d}",
        ]
        assert sorted(each.name.removeprefix("batch=") for each in namespace.iterdir()) == names
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES + 2))


def test_rows_with_former_timestamps_are_read_and_merged_with_the_rest(spark: "SparkSession", tmp_path: Path) -> None:
    form = "spark.sql.parquet.outputTimestampType"
    former = spark.conf.get(form)
    spark.conf.set(form, "INT96")
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES - 1)))
    spark.conf.set(form, str(former))
    write(spark, tmp_path, small(MIN_DIRECTORIES - 1))
    files = [pq.ParquetFile(file) for file in tmp_path.glob(f"{EVENTS}/**/*.parquet")]
    assert {file.schema.column(6).physical_type for file in files} == {"INT96", "INT64"}
    assert Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES)
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))
    columns = [pq.ParquetFile(file).metadata.row_group(0).column(6) for file in tmp_path.glob(f"{EVENTS}/**/*.parquet")]
    assert {(column.path_in_schema, column.statistics.min, column.statistics.max) for column in columns} == {
        ("at", NOW, NOW)
    }


def test_an_archive_without_the_column_extra_is_read_and_merged_with_the_rest(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES - 1)), without="extra")
    assert {row.extra for row in events(spark, str(tmp_path)).collect()} == {None}
    write(spark, tmp_path, small(MIN_DIRECTORIES - 1))
    before = Counter({None: len(NAMES) * 3 * (MIN_DIRECTORIES - 1), '{"node": "a"}': len(NAMES) * 3})
    assert Counter(row.extra for row in events(spark, str(tmp_path)).collect()) == before
    assert Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES)
    assert Counter(row.extra for row in events(spark, str(tmp_path)).collect()) == before


def test_an_interrupted_merge_is_finished_by_the_next_and_each_row_is_read_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES)))
    kept = shutil.copytree(tmp_path / EVENTS, tmp_path / "kept")
    merger = Merger(spark, str(tmp_path), 0)
    merger.merge("abcdef12", MIN_DIRECTORIES)
    merged = directories(tmp_path)
    shutil.copytree(kept, tmp_path / EVENTS, dirs_exist_ok=True)
    shutil.rmtree(kept)
    assert spark.read.parquet(str(tmp_path / EVENTS)).count() == 2 * expected(*range(MIN_DIRECTORIES)).total()
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))
    assert merger.merge("abcdef12", MIN_DIRECTORIES) == len(NAMES) * MIN_DIRECTORIES
    assert directories(tmp_path) == merged
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES))


def test_a_day_that_is_over_becomes_one_directory_once_nothing_comes_any_more(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write(spark, tmp_path, *map(small, range(2 * MIN_DIRECTORIES)), at=LONG_AGO)
    for first in range(0, 2 * MIN_DIRECTORIES, 2):
        for namespace in tmp_path.glob(f"{EVENTS}/*/*"):  # as if merged in pairs
            target = namespace / f"batch={Batches('abcdef12', first, first + 1).name}"
            (namespace / f"batch={small(first).name}").rename(target)
            file = next((namespace / f"batch={small(first + 1).name}").glob("*.parquet"))
            file.rename(target / f"other-{file.name}")
            shutil.rmtree(file.parent)
    lasting = Merger(spark, str(tmp_path), 40 * 86_400)
    assert [lasting.merge("abcdef12", 100), lasting.merge("abcdef12", 100)] == [0, 0], "more may come"
    merger = Merger(spark, str(tmp_path), 0)
    assert merger.merge("abcdef12", 100) == 0, "some came since the last one"
    assert merger.merge("abcdef12", 100) == len(NAMES) * (MIN_DIRECTORIES - 1)
    assert {each.name for each in directories(tmp_path)} == {f"batch=abcdef12-000000000..{2 * MIN_DIRECTORIES - 1:09d}"}
    assert ids(spark, tmp_path) == expected(*range(2 * MIN_DIRECTORIES))


def test_batches_of_another_query_and_what_a_pipeline_did_not_write_stay_apart(
    spark: "SparkSession", tmp_path: Path
) -> None:
    others = [small(100 + number, "12345678") for number in range(MIN_DIRECTORIES)]
    write(spark, tmp_path, *map(small, [*range(MIN_DIRECTORIES), 200]), *others)
    for namespace in tmp_path.glob(f"{EVENTS}/*/*"):
        (namespace / f"batch={small(200).name}").rename(namespace / "batch=mine")
    Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES)
    names = {"abcdef12-000000000..000000007", "12345678-000000100..000000107", "mine"}
    assert {each.name.removeprefix("batch=") for each in directories(tmp_path)} == names
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES), *range(100, 100 + MIN_DIRECTORIES), 200)


def test_parts_of_roll_ups_are_merged_and_give_the_same_hours(spark: "SparkSession", tmp_path: Path, here: Any) -> None:
    from services.pipeline.rollups import Rollups
    from tests.spark.micro_batches import KEPT, frame, now_and_before

    rows = now_and_before()[2][1:]
    rollups = Rollups(spark, str(tmp_path), here, KEPT, 0)
    for number in range(MIN_DIRECTORIES):
        rollups.add(frame(spark, rows), "abcdef12", number, small(number).name)
    assert Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES) == MIN_DIRECTORIES - 1
    shutil.copytree(
        directories(tmp_path, MINUTES)[0], directories(tmp_path, MINUTES)[0].parent / "batch=abcdef12-000000003"
    )
    Rollups(spark, str(tmp_path), here, KEPT, 0).close()
    hours = spark.read.parquet(str(tmp_path / "rollups")).where("size = 'hour'").collect()
    assert [row["count"] for row in hours] == [MIN_DIRECTORIES]


def test_a_merge_that_has_not_written_all_rows_deletes_nothing(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.classic.dataframe import DataFrame

    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES)))
    before = directories(tmp_path)
    monkeypatch.setattr(DataFrame, "count", lambda _: 23)
    with pytest.raises(PenstockError, match=r"of 24 rows 23 were written; nothing is deleted"):
        Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES)
    assert directories(tmp_path) == before


def test_a_read_during_a_merge_is_repeated(
    spark: "SparkSession", tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES)))
    merger, counts = Merger(spark, str(tmp_path), 0), list[int]()
    for reading in retry_reads():
        with reading:
            rows = events(spark, str(tmp_path))
            merger.merge("abcdef12", MIN_DIRECTORIES)
            counts.append(len(rows.collect()))
    assert counts == [expected(*range(MIN_DIRECTORIES)).total()]
    assert capfd.readouterr().err.count("files of the archive were merged meanwhile: reading it again") == 1


def test_missing_files_are_reported(spark: "SparkSession", tmp_path: Path) -> None:
    from py4j.protocol import Py4JError

    write(spark, tmp_path, small(0))
    rows, tries = events(spark, str(tmp_path)), 0
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()

    def read() -> None:
        nonlocal tries
        for reading in retry_reads():
            with reading:
                tries += 1
                rows.collect()

    with pytest.raises(Py4JError) as raised:
        read()
    assert tries == MAX_READS
    assert "does not exist" in reason_of_error(raised.value)


def test_a_checkpoint_older_than_the_archive_is_refused(spark: "SparkSession", tmp_path: Path, here: Any) -> None:
    settings = Settings(redis="redis://h", redis_namespace="pipe", watch=["shop"], archive=str(tmp_path))
    archive = Archive(settings, here, Keys("pipe"), None)
    here.hset("pipe:metrics:pipeline", mapping={"query": "abcdef12-3456", "batch": 5})
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "abcdef12-3456")
    try:
        archive.write(spark.range(1), 5)
        with pytest.raises(Unsuitable, match="micro-batch 4 comes again, though 5 is archived: the checkpoint is"):
            archive.write(spark.range(1), 4)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]
    assert not directories(tmp_path)


Step = tuple[str, int]
STEPS: Final = ("come", "come", "merge", "merge all", "break", "break off", "break off all")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 12)), max_size=40), st.booleans())
def test_each_batch_is_there_once_whatever_the_order_of_writes_and_merges(steps: list[Step], seals: bool) -> None:
    """Model a place as the set of its directories, each with the batches that it held when it was written.

    A directory without a manifest is of an older version. A merge may be interrupted as it deletes or renames.
    """
    place: dict[Batches, set[int]] = {}
    sealed: set[Batches] = set()
    come = 0

    def look() -> tuple[set[Batches], set[Batches]]:
        return find_stale(place, sealed.__contains__, lambda several: sum(len(place[each]) for each in several))

    for step, number in steps:
        if step == "come":
            for each in range(come, come + number):
                place[small(each)] = {each}
            come += number
            continue
        for batches in set.union(*look()):
            del place[batches]
        # The newest batches may still change.
        settled = sorted(each for each in place if each.last < come - number % 3)
        if chosen := to_merge(settled, everything=step.endswith("all")):
            rows = [place[each] for each in chosen]
            assert sum(map(len, rows)) == len(set.union(*rows))
            target = Batches("abcdef12", chosen[0].first, chosen[-1].last)
            place[target] = set(sorted(set.union(*rows))[: number if step.startswith("break off") else None])
            if not step.startswith("break off"):
                sealed |= {target} if seals else set()
                for batches in chosen[number if step == "break" else 0 :]:
                    del place[batches]
        there = [row for each in place.keys() - set.union(*look()) for row in place[each]]
        assert sorted(there) == list(range(come))


def test_a_large_batch_range_between_small_ones_is_merged_with_them() -> None:
    between = Batches("abcdef12", 4, 6)
    several = [*map(small, range(4)), between, *map(small, range(7, 7 + MIN_DIRECTORIES)), Batches("abcdef12", 90, 99)]
    assert to_merge(several, everything=False) == several[:-1]
