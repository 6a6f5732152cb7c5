"""The archive: many micro-batches are published together, and each row is read once."""

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest

from penstock.cli._archive import MAX_READS, retry_reads
from penstock.errors import PenstockError, Unsuitable
from penstock.keys import Keys
from penstock.spark import claims
from penstock.spark.archive import DDL, EVENTS, MINUTES, RECENT, Batches, events, rolled_up
from penstock.spark.reasons import reason_of_error
from services.pipeline import merging
from services.pipeline.archive import Archive
from services.pipeline.merging import MAX_MERGES, MIN_DIRECTORIES, Merger
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
    assert merger.merge("abcdef12", MIN_DIRECTORIES) == len(NAMES) * MIN_DIRECTORIES
    assert merger.merge("abcdef12", MIN_DIRECTORIES) == 0
    left = [f"batch={small(number).name}" for number in (MIN_DIRECTORIES, MIN_DIRECTORIES + 1)]
    assert [each.name for each in directories(tmp_path)] == 2 * [f"batch=abcdef12-000000000..{MIN_DIRECTORIES - 1:09d}"]
    assert [each.name for each in directories(tmp_path, RECENT[EVENTS])] == 2 * left
    assert ids(spark, tmp_path) == expected(*range(MIN_DIRECTORIES + 2))


@pytest.mark.parametrize("over", [True, False])
def test_few_micro_batches_are_published_once_the_day_is_over_or_some_merges_later(
    spark: "SparkSession", tmp_path: Path, over: bool
) -> None:
    write(spark, tmp_path, small(0), small(1), at=LONG_AGO)
    merger = Merger(spark, str(tmp_path), 0 if over else 40 * 86_400)
    published = [merger.merge("abcdef12", 9) for _ in range(MAX_MERGES)]
    assert published == ([4, 0, 0, 0] if over else [0, 0, 0, 4])
    assert {each.name for each in directories(tmp_path)} == {"batch=abcdef12-000000000..000000001"}
    assert [*tmp_path.glob(f"{RECENT[EVENTS]}/*")] == ([] if over else [tmp_path / f"recent/date={LONG_AGO.date()}"])
    assert ids(spark, tmp_path) == expected(0, 1)


def test_everything_is_published_when_that_is_asked(spark: "SparkSession", tmp_path: Path) -> None:
    write(spark, tmp_path, small(0), small(1), small(2))
    assert Merger(spark, str(tmp_path), 0).merge("abcdef12", 2, everything=True) == 4
    assert ids(spark, tmp_path) == expected(0, 1, 2)
    assert {each.name for each in directories(tmp_path, RECENT[EVENTS])} == {f"batch={small(2).name}"}


def test_rows_with_former_timestamps_are_read_and_merged_with_the_rest(spark: "SparkSession", tmp_path: Path) -> None:
    form = "spark.sql.parquet.outputTimestampType"
    former = spark.conf.get(form)
    spark.conf.set(form, "INT96")
    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES - 1)))
    spark.conf.set(form, str(former))
    write(spark, tmp_path, small(MIN_DIRECTORIES - 1))
    files = [pq.ParquetFile(file) for file in tmp_path.glob(f"{RECENT[EVENTS]}/**/*.parquet")]
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


def test_batches_of_another_query_and_what_a_pipeline_did_not_write_stay_apart(
    spark: "SparkSession", tmp_path: Path
) -> None:
    others = [small(100 + number, "12345678") for number in range(MIN_DIRECTORIES)]
    write(spark, tmp_path, *map(small, [*range(MIN_DIRECTORIES), 200]), *others)
    for namespace in tmp_path.glob(f"{RECENT[EVENTS]}/*/*"):
        (tmp_path / EVENTS / namespace.relative_to(tmp_path / RECENT[EVENTS])).mkdir(parents=True)
        mine = tmp_path / EVENTS / namespace.relative_to(tmp_path / RECENT[EVENTS]) / "batch=mine"
        (namespace / f"batch={small(200).name}").rename(mine)
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
    before = rolled_up(spark, str(tmp_path), "hour").collect()
    assert Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES) == MIN_DIRECTORIES
    assert [each.name for each in directories(tmp_path, MINUTES)] == ["batch=abcdef12-000000000..000000007"]
    assert rolled_up(spark, str(tmp_path), "hour").collect() == before
    Rollups(spark, str(tmp_path), here, KEPT, 0).close()
    hours = spark.read.parquet(str(tmp_path / "rollups")).where("size = 'hour'").collect()
    assert [row["count"] for row in hours] == [MIN_DIRECTORIES]


def test_a_merge_that_has_not_written_all_rows_publishes_nothing(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.classic.dataframe import DataFrame

    write(spark, tmp_path, *map(small, range(MIN_DIRECTORIES)))
    before = directories(tmp_path, RECENT[EVENTS])
    monkeypatch.setattr(DataFrame, "count", lambda _: 23)
    with pytest.raises(PenstockError, match=r"of 24 rows 23 were written; nothing is published"):
        Merger(spark, str(tmp_path), 0).merge("abcdef12", MIN_DIRECTORIES)
    assert directories(tmp_path, RECENT[EVENTS]) == before
    assert directories(tmp_path) == []


def test_a_claim_whose_files_another_process_has_deleted_is_void(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(spark, tmp_path, small(0), small(1))
    merger, claim = Merger(spark, str(tmp_path), 0), claims.write_claim

    def late(*words: Any) -> bool:
        Merger(spark, str(tmp_path), 0)
        return claim(*words)

    with monkeypatch.context() as patched:
        patched.setattr(merging, "write_claim", late)
        merger.merge("abcdef12", 2, everything=True)
    assert directories(tmp_path) == []
    assert ids(spark, tmp_path) == expected(0, 1)
    assert merger.merge("abcdef12", 2, everything=True) == 4
    assert ids(spark, tmp_path) == expected(0, 1)


def test_a_claim_of_another_pipeline_is_respected_and_finished(spark: "SparkSession", tmp_path: Path) -> None:
    write(spark, tmp_path, small(0), small(1))
    place = next(tmp_path.glob("recent/*/*"))
    other = claims.Claim(Batches("abcdef12", 0, 0), [small(0).name], "other", {"part-0.zstd.parquet": 5})
    (tmp_path / "_merging/other").mkdir(parents=True)
    (tmp_path / "_merging/other/part-0.zstd.parquet").write_bytes(b"whole")
    assert claims.write_claim(spark, f"{place}/{claims.CLAIM}", other)
    assert not claims.write_claim(spark, f"{place}/{claims.CLAIM}", other)
    Merger(spark, str(tmp_path), 0)
    assert [*tmp_path.glob(f"{EVENTS}/*/*/*/*.parquet")]
    assert [each.name for each in place.glob("batch=*")] == [f"batch={small(1).name}"]


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
    assert capfd.readouterr().err.count("files of the archive were published meanwhile: reading it again") == 1


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


@pytest.mark.parametrize("before", [0, 900])
def test_a_micro_batch_that_is_repeated_after_merge_every_has_changed_is_there_once(
    spark: "SparkSession", tmp_path: Path, here: Any, before: int
) -> None:
    same: dict[str, Any] = {"place": 0, "at": NOW, "event": "done", "malformed": None}
    rows = [
        same | {"entry": id, "id": id, "namespace": namespace} for id in ("0-0", "0-1", "0-2") for namespace in NAMES
    ]
    batch = spark.createDataFrame(rows, DDL.partition(", date ")[0] + ", namespace string, malformed string")
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "abcdef12-3456")
    try:
        for every in (before, 900 - before):
            settings = Settings(
                redis="redis://h", redis_namespace="pipe", watch=["shop"], archive=str(tmp_path), merge_every=every
            )
            Archive(settings, here, Keys("pipe"), None).write(batch, 0)
            here.delete("pipe:metrics:pipeline")  # as if it had ended before that
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]
    assert ids(spark, tmp_path) == expected(0)
    assert len(directories(tmp_path, EVENTS if before else RECENT[EVENTS])) == len(NAMES)


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
