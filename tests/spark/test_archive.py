"""The archive: many micro-batches are published together, and each row is read once."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError

from penstock.base.errors import PenstockError, Unsuitable
from penstock.base.keys import Keys
from penstock.cli._archive import MAX_READS, retry_reads
from penstock.spark import claims
from penstock.spark.archive import (
    ASIDE,
    BEGUN,
    EVENTS,
    MINUTES,
    PARTITIONS,
    RECENT,
    ROLLUPS,
    Mounted,
    delete_published,
    events,
    overwrite,
    rolled_up,
    stored,
)
from penstock.spark.claims import Batches
from penstock.spark.reasons import reason_of_error
from penstock.spark.sources import archiving
from penstock.spark.sources.archiving import FILES_DDL, ROWS_DDL, prepared, written
from penstock.spark.sql import connect
from services.pipeline import merging
from services.pipeline.archive import Archive
from services.pipeline.merging import Merger
from services.pipeline.rollups import Rollups
from services.pipeline.settings import Settings
from tests.spark import SparkSession
from tests.spark.micro_batches import KEPT, NAMES, NOW, directories, expected, ids, small, write

MANY: Final = 8


def test_many_micro_batches_become_one_directory_of_each_place_without_losing_a_row(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write(spark, tmp_path, small(0), small(1), at=NOW - timedelta(days=30))
    write(spark, tmp_path, *map(small, range(2, MANY + 2)))
    merger = Merger(spark, str(tmp_path))
    assert [merger.merge("abcdef12", MANY) for _ in range(2)] == [MANY, 0]
    left = [f"batch={small(number).name}" for number in (MANY, MANY + 1)]
    found = directories(tmp_path)
    assert {each.name for each in found} == {f"batch=abcdef12-000000000..{MANY - 1:09d}"}
    assert len({each.parent for each in found}) == len(found) == 2 * len(NAMES)
    assert [each.name for each in directories(tmp_path, RECENT[EVENTS])] == left
    assert ids(spark, tmp_path) == expected(*range(MANY + 2))
    assert [merger.merge("abcdef12", MANY + 1) for _ in range(2)] == [1, 0], "a single one has settled since"
    assert ids(spark, tmp_path) == expected(*range(MANY + 2))


def test_rows_with_former_timestamps_are_read_and_merged_with_the_rest(spark: "SparkSession", tmp_path: Path) -> None:
    form = "spark.sql.parquet.outputTimestampType"
    former = spark.conf.get(form)
    spark.conf.set(form, "INT96")
    write(spark, tmp_path, *map(small, range(MANY - 1)))
    spark.conf.set(form, str(former))
    write(spark, tmp_path, small(MANY - 1))
    files = [pq.ParquetFile(file) for file in tmp_path.glob(f"{RECENT[EVENTS]}/**/*.parquet")]
    assert {file.schema.column(6).physical_type for file in files} == {"INT96", "INT64"}
    assert Merger(spark, str(tmp_path)).merge("abcdef12", MANY)
    assert ids(spark, tmp_path) == expected(*range(MANY))
    columns = [pq.ParquetFile(file).metadata.row_group(0).column(6) for file in tmp_path.glob(f"{EVENTS}/**/*.parquet")]
    assert {(column.path_in_schema, column.statistics.min, column.statistics.max) for column in columns} == {
        ("at", NOW, NOW)
    }


def test_an_archive_without_the_column_extra_is_read_and_merged_with_the_rest(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write(spark, tmp_path, *map(small, range(MANY - 1)), without="extra")
    assert {row.extra for row in events(spark, str(tmp_path)).collect()} == {None}
    write(spark, tmp_path, small(MANY - 1))
    before = Counter({None: len(NAMES) * 3 * (MANY - 1), '{"node": "a"}': len(NAMES) * 3})
    assert Counter(row.extra for row in events(spark, str(tmp_path)).collect()) == before
    assert Merger(spark, str(tmp_path)).merge("abcdef12", MANY)
    assert Counter(row.extra for row in events(spark, str(tmp_path)).collect()) == before


def test_batches_of_another_query_and_what_a_pipeline_did_not_write_stay_apart(
    spark: "SparkSession", tmp_path: Path
) -> None:
    others = [small(100 + number, "12345678") for number in range(MANY)]
    write(spark, tmp_path, *map(small, range(MANY)), *others)
    write(spark, tmp_path / "mine", small(200))
    Merger(spark, str(tmp_path / "mine")).merge("", 0)
    for path in directories(tmp_path / "mine"):
        target = tmp_path / path.relative_to(tmp_path / "mine").parent
        target.mkdir(parents=True)
        path.rename(target / "batch=mine")
    Merger(spark, str(tmp_path)).merge("abcdef12", MANY)
    names = {"abcdef12-000000000..000000007", "12345678-000000100..000000107", "mine"}
    assert {each.name.removeprefix("batch=") for each in directories(tmp_path)} == names
    assert ids(spark, tmp_path) == expected(*range(MANY), *range(100, 100 + MANY), 200)


def test_parts_of_roll_ups_are_merged_and_give_the_same_hours(spark: "SparkSession", tmp_path: Path, here: Any) -> None:
    from tests.spark.micro_batches import counted, now_and_before

    rows = now_and_before()[2][1:]
    rollups = Rollups(spark, str(tmp_path), here, KEPT, 0)
    for number in range(MANY):
        rollups.add(counted(rows), "abcdef12", number, small(number).name)
    before = rolled_up(spark, str(tmp_path), "hour").collect()
    assert Merger(spark, str(tmp_path)).merge("abcdef12", MANY) == MANY
    assert [each.name for each in directories(tmp_path, MINUTES)] == ["batch=abcdef12-000000000..000000007"]
    assert rolled_up(spark, str(tmp_path), "hour").collect() == before
    Rollups(spark, str(tmp_path), here, KEPT, 0).close()
    hours = spark.read.parquet(str(tmp_path / "rollups")).where("size = 'hour'").collect()
    assert [row["count"] for row in hours] == [MANY]


def test_a_merge_that_has_not_written_all_rows_publishes_nothing(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import Observation

    write(spark, tmp_path, *map(small, range(MANY)))
    before = directories(tmp_path, RECENT[EVENTS])
    merger = Merger(spark, str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(Observation, "get", {"rows": 49})
        with pytest.raises(PenstockError, match=r"of 49 rows 48 were written; nothing is published"):
            merger.merge("abcdef12", MANY)
    assert directories(tmp_path, RECENT[EVENTS]) == before
    assert directories(tmp_path) == []
    assert merger.merge("abcdef12", MANY) == MANY
    assert not [*tmp_path.glob("_merging/*")], "with a full disk, each try would need more room"


def test_a_claim_whose_files_another_process_has_deleted_is_void(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(spark, tmp_path, small(0), small(1))
    merger, claim = Merger(spark, str(tmp_path)), claims.write_claim

    def late(*words: Any, **named: Any) -> bool:
        Merger(spark, str(tmp_path))
        return claim(*words, **named)

    with monkeypatch.context() as patched:
        patched.setattr(merging, "write_claim", late)
        merger.merge("abcdef12", 2)
    assert directories(tmp_path) == []
    assert ids(spark, tmp_path) == expected(0, 1)
    assert merger.merge("abcdef12", 2) == 2
    assert ids(spark, tmp_path) == expected(0, 1)


@pytest.mark.parametrize("claimed", [False, True])
def test_a_merge_that_was_stopped_publishes_nothing_that_another_process_has_published(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claimed: bool
) -> None:
    """Its task had read all rows, and writes them once the other one has tidied up. ``claimed``: it stops once more."""
    write(spark, tmp_path, small(0), small(1))
    merger, claim, aside = Merger(spark, str(tmp_path)), claims.write_claim, tmp_path / ASIDE

    def late(*words: Any, **named: Any) -> bool:
        monkeypatch.setattr(merging, "write_claim", claim)
        aside.rename(tmp_path / "unwritten")
        other = Merger(spark, str(tmp_path))
        write(spark, tmp_path, small(2))
        other.merge("abcdef12", 3)
        (tmp_path / "unwritten").rename(aside)
        written = claim(*words, **named)
        if claimed:
            Merger(spark, str(tmp_path))
        return written

    monkeypatch.setattr(merging, "write_claim", late)
    merger.merge("abcdef12", 2)
    assert ids(spark, tmp_path) == expected(0, 1, 2)
    write(spark, tmp_path, small(3))
    assert merger.merge("abcdef12", 4) == 1
    assert ids(spark, tmp_path) == expected(0, 1, 2, 3)


@pytest.mark.parametrize("step", ["Merger._let_go", "move"])
def test_a_merge_that_was_stopped_before_its_last_step_leaves_the_claim_of_its_successor(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write(spark, tmp_path, small(0), small(1))
    merger, published = Merger(spark, str(tmp_path)), tmp_path / RECENT[EVENTS] / claims.PUBLISHED
    name = f"services.pipeline.merging.{step}"
    usual = resolve_name(name)

    def late(*words: Any) -> None:
        if step == "Merger._let_go" or words[-1] == str(published):
            monkeypatch.setattr(name, usual)
            other = Merger(spark, str(tmp_path))
            write(spark, tmp_path, small(2))
            other.merge("abcdef12", 3)
            later.append(published.read_text())
        usual(*words)

    later = list[str]()
    monkeypatch.setattr(name, late)
    with pytest.raises((Unsuitable, Py4JJavaError), match=r"another pipeline has taken over|FileNotFoundException"):
        merger.merge("abcdef12", 2)
    assert [published.read_text()] == later
    write(spark, tmp_path, small(2))  # once more
    assert ids(spark, tmp_path) == expected(0, 1, 2)


def test_a_micro_batch_that_is_written_again_after_it_was_published_counts_once(
    spark: "SparkSession", tmp_path: Path, here: Any
) -> None:
    """A process that was stopped commits it, where it cannot be kept from that, as with HDFS."""
    from tests.spark.micro_batches import counted, now_and_before

    def write_both(*numbers: int) -> None:
        write(spark, tmp_path, *map(small, numbers))
        for number in numbers:
            Rollups(spark, str(tmp_path), here, KEPT, 0).add(counted(rows), "abcdef12", number, small(number).name)

    rows = now_and_before()[2][1:]
    write_both(0, 1, 2)
    merger = Merger(spark, str(tmp_path))
    merger.merge("abcdef12", 2)
    before = rolled_up(spark, str(tmp_path), "hour").collect()
    for _ in range(2):
        write_both(1)
        assert ids(spark, tmp_path) == expected(0, 1, 2)
        with connect(str(tmp_path)) as connection:
            assert connection.execute("SELECT count(*) FROM events").fetchall() == [(expected(0, 1, 2).total(),)]
        assert rolled_up(spark, str(tmp_path), "hour").collect() == before
        assert merger.merge("abcdef12", 2) == 0
        left = [directories(tmp_path, root) for root in RECENT.values()]
        assert [[each.name for each in some] for some in left] == [[f"batch={small(2).name}"]] * 2
    assert merger.merge("abcdef12", 3) == 1
    assert ids(spark, tmp_path) == expected(0, 1, 2)
    assert rolled_up(spark, str(tmp_path), "hour").collect() == before


def test_what_a_task_of_a_stopped_process_is_to_move_into_place_stays_for_a_day(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Without it, Spark would delete what its successor has written, and then fail."""
    staged = tmp_path / RECENT[EVENTS] / ".spark-staging-1"
    staged.mkdir(parents=True)
    Merger(spark, str(tmp_path))
    assert staged.exists()
    old = staged.stat().st_mtime - merging.KILLED_SECONDS
    os.utime(staged, (old, old))
    Merger(spark, str(tmp_path))
    assert not staged.exists()


def test_a_claim_of_another_pipeline_is_respected_and_finished(spark: "SparkSession", tmp_path: Path) -> None:
    write(spark, tmp_path, small(0), small(1))
    place = "date=2026-11-21/namespace=shop"
    other = claims.Claim(Batches("abcdef12", 0, 0), [small(0).name], "other", {f"{place}/part-0.parquet": 5})
    (tmp_path / "_merging/other" / place).mkdir(parents=True)
    (tmp_path / "_merging/other" / place / "part-0.parquet").write_bytes(b"whole")
    claim = f"{tmp_path}/{RECENT[EVENTS]}/{claims.PUBLISHING}"
    assert [claims.write_claim(spark, claim, other) for _ in range(2)] == [True, False]
    Merger(spark, str(tmp_path))
    assert (tmp_path / EVENTS / place / "batch=abcdef12-000000000/part-0.parquet").read_bytes() == b"whole"
    assert [each.name for each in directories(tmp_path, RECENT[EVENTS])] == [f"batch={small(1).name}"]


def test_a_claim_that_was_cut_off_is_void_once_nobody_writes_it(spark: "SparkSession", tmp_path: Path) -> None:
    write(spark, tmp_path, small(0), small(1))
    claim = tmp_path / RECENT[EVENTS] / claims.PUBLISHING
    claim.write_text("{")
    with pytest.raises(PenstockError, match="another pipeline publishes these events, too"):
        Merger(spark, str(tmp_path)).merge("abcdef12", 2)
    assert ids(spark, tmp_path) == expected(0, 1)
    old = claim.stat().st_mtime - claims.CUT_OFF_SECONDS - 1
    os.utime(claim, (old, old))
    assert Merger(spark, str(tmp_path)).merge("abcdef12", 2) == 2
    assert ids(spark, tmp_path) == expected(0, 1)


def test_a_read_during_a_merge_is_repeated(
    spark: "SparkSession", tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(spark, tmp_path, *map(small, range(MANY)))
    merger, counts = Merger(spark, str(tmp_path)), list[int]()
    for reading in retry_reads():
        with reading:
            rows = events(spark, str(tmp_path))
            merger.merge("abcdef12", MANY)
            counts.append(len(rows.collect()))
    assert counts == [expected(*range(MANY)).total()]
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


def test_a_byte_that_the_disk_has_changed_is_no_other_value(spark: "SparkSession", tmp_path: Path) -> None:
    from py4j.protocol import Py4JError

    write(spark, tmp_path, small(0))
    file = next(tmp_path.rglob("*.parquet"))
    content, column = bytearray(file.read_bytes()), pq.ParquetFile(file).metadata.row_group(0).column(0)
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1  # in what entries are
    file.write_bytes(content)
    with pytest.raises(Py4JError) as raised:
        events(spark, str(tmp_path)).collect()
    assert "CRC checksum verification failed" in str(raised.value)


@pytest.fixture(params=[True, False], ids=["mounted", "by Java"])
def write_batch(
    spark: "SparkSession", tmp_path: Path, here: Any, request: pytest.FixtureRequest
) -> "Iterator[Callable[..., None]]":
    """Return what writes a micro-batch as the pipeline does, with three events of each namespace."""

    def write_batch(number: int, names: Sequence[str] = NAMES, at: Sequence[datetime] = (NOW,)) -> None:
        same: dict[str, Any] = {"place": 0, "event": "done", "queue": "out", "malformed": None}
        rows = [
            same | {"entry": f"{number}-{row}", "id": f"{number}-{row}", "namespace": name, "at": at[row % len(at)]}
            for row in range(3)
            for name in names
        ]
        batch = spark.createDataFrame(rows, ROWS_DDL.replace("date date, ", ""))
        batch = batch.mapInArrow(lambda rows: (prepared(each, None) for each in rows), ROWS_DDL)
        mounted = Mounted.at(tmp_path) if request.param else None
        if mounted:
            mounted.begin()
            aside = str(mounted.aside)
            batch = batch.mapInArrow(lambda rows: written(rows, aside, True), FILES_DDL)
        settings = Settings(redis="redis://h", redis_namespace="pipe", watch=["shop"], archive=str(tmp_path))
        rollups = Rollups(spark, str(tmp_path), here, KEPT, 0, mounted)
        Archive(settings, here, Keys("pipe"), rollups, mounted).write(batch, number)

    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "abcdef12-3456")
    yield write_batch
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("formerly", [True, False])
def test_a_micro_batch_that_is_repeated_replaces_what_it_had_written(
    spark: "SparkSession", tmp_path: Path, here: Any, write_batch: Callable[..., None], formerly: bool
) -> None:
    """Also where version 0.2 had written it."""
    for _ in range(2):
        write_batch(0)
        here.delete("pipe:metrics:pipeline")  # as if it had ended before that
        if formerly:
            for base, columns in PARTITIONS.items():
                overwrite(stored(spark, str(tmp_path), base), str(tmp_path / base), *columns, "batch")
                shutil.rmtree(tmp_path / RECENT[base])
    write_batch(0)
    assert ids(spark, tmp_path) == expected(0)
    assert sum(row["count"] for row in rolled_up(spark, str(tmp_path), "day").collect()) == len(expected(0))
    assert [len(directories(tmp_path, base)) for base in (EVENTS, RECENT[EVENTS])] == [0, 1]
    assert not [*tmp_path.glob(f"{BEGUN}/*/*")]


@pytest.mark.parametrize("write_batch", [True], indirect=True)
@pytest.mark.parametrize("step", ["staged", "replace"])
@pytest.mark.parametrize("root", [EVENTS, MINUTES])
def test_a_process_that_was_stopped_and_goes_on_after_a_takeover_replaces_nothing(
    spark: "SparkSession",
    tmp_path: Path,
    write_batch: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    root: str,
    step: str,
) -> None:
    usual = getattr(Mounted, step)

    def late(mounted: Mounted, where: str, *words: Any) -> Any:
        if Path(where).parts[0] in (root, RECENT[root]):
            monkeypatch.setattr(Mounted, step, usual)
            merger = Merger(spark, str(tmp_path))  # another process begins
            write_batch(0)
            merger.merge("abcdef12", 1)
        return usual(mounted, where, *words)

    monkeypatch.setattr(Mounted, step, late)
    with pytest.raises(Unsuitable, match="another pipeline has taken over"):
        write_batch(0)
    assert ids(spark, tmp_path) == expected(0)
    assert sum(row["count"] for row in rolled_up(spark, str(tmp_path), "day").collect()) == len(expected(0))


@pytest.mark.parametrize("write_batch", [True], indirect=True)
@pytest.mark.parametrize("writer", ["archive", "rollups"])
def test_a_process_that_was_stopped_deletes_nothing_that_its_successor_has_published(
    spark: "SparkSession",
    tmp_path: Path,
    write_batch: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
) -> None:
    name = f"services.pipeline.{writer}.delete_published"

    def late(*words: Any) -> None:
        monkeypatch.setattr(name, delete_published)
        merger = Merger(spark, str(tmp_path))  # another process begins
        write_batch(0)
        merger.merge("abcdef12", 1)
        delete_published(*words)

    monkeypatch.setattr(name, late)
    with pytest.raises(Unsuitable, match="another pipeline has taken over"):
        write_batch(0)
    assert ids(spark, tmp_path) == expected(0)
    assert sum(row["count"] for row in rolled_up(spark, str(tmp_path), "day").collect()) == len(expected(0))


def test_a_micro_batch_that_is_done_takes_nothing_from_roll_ups_that_are_written_meanwhile(tmp_path: Path) -> None:
    mounted = Mounted.at(tmp_path)
    mounted.begin()
    mounted.staged(EVENTS)
    mounted.staged(ROLLUPS)
    mounted.clear()
    assert [each.name for each in mounted.aside.iterdir()] == [ROLLUPS]


def test_tasks_write_nothing_where_no_directory_is(tmp_path: Path) -> None:
    with pytest.raises(Unsuitable, match="gone: not here: another pipeline has taken over, or this worker of Spark"):
        list(written([], str(tmp_path / "gone"), False))
    assert not [*tmp_path.iterdir()]


def test_what_killed_tasks_and_failed_attempts_left_is_no_part_of_the_archive(
    spark: "SparkSession", tmp_path: Path, write_batch: Callable[..., None]
) -> None:
    left = tmp_path / BEGUN / "of-another" / "0123.events"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"PAR1 cut off")
    write_batch(0)
    assert ids(spark, tmp_path) == expected(0)
    Merger(spark, str(tmp_path))
    assert not [*tmp_path.glob(f"{BEGUN}*"), *tmp_path.glob("_merging*")]


def test_no_row_group_is_larger_than_a_task_may_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the batches are that are read; a larger row has a group of its own."""
    monkeypatch.setattr(archiving, "GROUP_BYTES", 2**20)
    sizes = [300_000] * 10 + [2**21] + [1] * 10_000
    nothing = dict.fromkeys(archiving.KEPT, pa.nulls(len(sizes), pa.string()))
    batch = pa.RecordBatch.from_pydict(nothing | {"message": pa.array([bytes(size) for size in sizes], pa.binary())})
    ((row,),) = [each.to_pylist() for each in written([batch], str(tmp_path), False)]
    file = pq.ParquetFile(tmp_path / f"{row['file']}.events")
    groups = [file.read_row_group(number, ["message"])["message"].to_pylist() for number in range(file.num_row_groups)]
    assert [len(message) for group in groups for message in group] == sizes
    assert all(len(group) == 1 or sum(map(len, group)) <= 2**20 for group in groups)
    assert len(groups) < 10


@pytest.mark.parametrize("small_rows", [0, 300])
def test_java_writes_a_row_group_before_large_rows_need_more_memory(
    spark: "SparkSession", tmp_path: Path, small_rows: int
) -> None:
    """Until its next check it holds all rows: of 60 with 10 MB each it had run out of memory, also after small ones."""
    java = spark._jsc.hadoopConfiguration()
    java.setInt("parquet.block.size", 2**20)
    try:
        message = f"if(id < {small_rows}, 'x', randstr(300000, 1)) message"
        rows = spark.range(small_rows + 40).coalesce(1).selectExpr("id", message, "'x' batch")
        overwrite(rows, str(tmp_path / "many"), "batch")
    finally:
        java.unset("parquet.block.size")
    (file,) = tmp_path.glob("many/batch=x/*.parquet")
    assert pq.ParquetFile(file).num_row_groups > 2


def test_any_name_and_any_day_is_archived_merged_and_rolled_up(
    spark: "SparkSession", tmp_path: Path, write_batch: Callable[..., None]
) -> None:
    names = ["..", "%2F", "a/b", "123", "true", "2026-01-01", "*", "\n", "\U0001f600", "a=b", " ", "null"]
    names += ["x" * 245, "é" * 122, ":" * 81]
    unsuitable = ["x" * 246, "é" * 123, ":" * 82, "\0", "", "__HIVE_DEFAULT_PARTITION__"]
    days = [datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, tzinfo=UTC), NOW]
    for number in (0, 1):
        write_batch(number, names + unsuitable, days)
    Merger(spark, str(tmp_path)).merge("abcdef12", 2)
    assert not directories(tmp_path, RECENT[EVENTS])
    malformed = spark.read.parquet(f"{tmp_path}/_malformed").collect()
    assert Counter(row["namespace"] for row in malformed) == dict.fromkeys(unsuitable, 6)
    wanted = Counter((name, f"{number}-{row}") for name in names for number in range(2) for row in range(3))
    assert ids(spark, tmp_path) == wanted
    with connect(str(tmp_path)) as views:
        assert Counter(views.execute("SELECT namespace, id FROM events").fetchall()) == wanted
    counts = rolled_up(spark, str(tmp_path), "day").collect()
    assert Counter({row["namespace"]: row["count"] for row in counts}) == dict.fromkeys(names, 2)


def test_a_checkpoint_older_than_the_archive_is_refused(spark: "SparkSession", tmp_path: Path, here: Any) -> None:
    settings = Settings(redis="redis://h", redis_namespace="pipe", watch=["shop"], archive=str(tmp_path))
    writer = Archive(settings, here, Keys("pipe"), None)
    here.hset("pipe:metrics:pipeline", mapping={"query": "abcdef12-3456", "batch": 5})
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "abcdef12-3456")
    try:
        writer.write(spark.range(1), 5)
        with pytest.raises(Unsuitable, match="micro-batch 4 comes again, though 5 is archived: the checkpoint is"):
            writer.write(spark.range(1), 4)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]
    assert not directories(tmp_path)


@pytest.mark.parametrize("published", [EVENTS, MINUTES])
def test_a_checkpoint_older_than_what_is_published_is_refused_by_a_new_server_too(
    spark: "SparkSession", tmp_path: Path, here: Any, published: str
) -> None:
    """Readers would take its events, or its part of the roll-ups, for those that are published."""
    write(spark, tmp_path, small(4), small(5))
    Merger(spark, str(tmp_path)).merge("abcdef12", 6)
    (tmp_path / RECENT[published]).mkdir(exist_ok=True)
    (tmp_path / RECENT[EVENTS] / claims.PUBLISHED).rename(tmp_path / RECENT[published] / claims.PUBLISHED)
    settings = Settings(redis="redis://h", redis_namespace="pipe", watch=["shop"], archive=str(tmp_path))
    writer = Archive(settings, here, Keys("pipe"), None)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "abcdef12-3456")
    try:
        for number in (4, 5):
            with pytest.raises(Unsuitable, match=f"micro-batch {number} comes again, though 5 is archived: the check"):
                writer.write(spark.range(1), number)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]


def test_a_pipeline_that_is_behind_its_successor_blames_no_checkpoint(
    spark: "SparkSession", tmp_path: Path, here: Any
) -> None:
    settings = Settings(redis="redis://h", redis_namespace="pipe", watch=["shop"], archive=str(tmp_path))
    writer = Archive(settings, here, Keys("pipe"), None, Mounted.at(tmp_path))
    here.hset("pipe:metrics:pipeline", mapping={"query": "abcdef12-3456", "batch": 5})
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "abcdef12-3456")
    try:
        with pytest.raises(Unsuitable, match="another pipeline has taken over"):
            writer.write(spark.range(1), 4)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]
