"""penstock archive: other readers and Delta tables have each event once, whatever is published or killed meanwhile."""

import random
import re
import shutil
import signal
import sys
from asyncio.subprocess import create_subprocess_exec
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from penstock.base.errors import NoArchive
from penstock.cli._archive import require_archive
from penstock.spark import delta, files
from penstock.spark.claims import PUBLISHED, PUBLISHING, Batches, Claim
from penstock.spark.delta import ExportFailed, export
from penstock.spark.files import Files
from tests.support.commandline import penstock
from tests.support.harness import ROOT

DAYS: Final = ("2026-11-21", "2026-11-22")
SHOP: Final = "a b:é%/=[x]"
ROWS: Final = 3
CODE: Final = re.compile(r"```python\n(.+?)```", re.DOTALL)
START: Final = 1_767_225_600_000_000


def place(archive: Path, batch: str, day: str = DAYS[0]) -> Path:
    return archive / "events" / f"date={day}" / f"namespace={quote(SHOP, safe='')}" / f"batch={batch}"


def name_of(first: int, last: int | None = None, query: str = "abc") -> str:
    return Batches(query, first, first if last is None else last).name


def write(directory: Path, numbers: Iterable[int], **same: Any) -> Path:
    """Write a file with events of micro-batches, which have entries named after them."""
    entries = [f"{number}-{row}" for number in numbers for row in range(ROWS)]
    directory.mkdir(parents=True, exist_ok=True)
    columns = {
        "entry": entries,
        "place": pa.array([0] * len(entries), "int32"),
        "at": pa.array([START] * len(entries), pa.timestamp("us", "UTC")),
        "message": pa.array([b"\xff\x00"] * len(entries), "binary"),
        **{name: [value] * len(entries) for name, value in same.items()},
    }
    pq.write_table(pa.table(columns), directory / f"part-{len([*directory.iterdir()])}.parquet")
    return directory


def come(archive: Path, *numbers: int, query: str = "abc", days: Iterable[str] = DAYS) -> None:
    """Write recent micro-batches."""
    for number in numbers:
        for day in days:
            directory = archive / "recent" / f"batch={name_of(number, query=query)}"
            write(directory, [number], date=date.fromisoformat(day), namespace=SHOP)


def merge(archive: Path, first: int, last: int, *, query: str = "abc", ends: bool = True) -> None:
    """Publish the micro-batches from ``first`` to ``last``, as a pipeline does."""
    recent = archive / "recent"
    names = [name_of(number, query=query) for number in range(first, last + 1)]
    covered = [name for name in names if (recent / f"batch={name}").is_dir()]
    if not covered:
        return
    found = [pq.ParquetFile(file).read() for name in covered for file in recent.glob(f"batch={name}/*.parquet")]
    rows = pa.concat_tables(found)
    (recent / PUBLISHING).write_text(str(Claim(Batches(query, first, last), covered, "aside", {})))
    for day in DAYS:
        of_day = rows.filter(pc.equal(rows["date"], date.fromisoformat(day)))
        if of_day.num_rows:
            target = place(archive, name_of(first, last, query), day)
            target.mkdir(parents=True)
            pq.write_table(of_day.drop_columns(["date", "namespace"]), target / "part-0.parquet")
    if ends:
        finish(archive)


def finish(archive: Path) -> None:
    """Finish what is claimed."""
    file = archive / "recent" / PUBLISHING
    if file.exists():
        claim = Claim.of(file.read_text())
        assert claim
        shutil.copy(file, file.with_name(PUBLISHED))
        for name in claim.covered:
            shutil.rmtree(file.parent / f"batch={name}", ignore_errors=True)
        file.unlink()
        file.with_name(PUBLISHED).unlink()


def publish(archive: Path, *numbers: int, query: str = "abc", days: Iterable[str] = DAYS) -> None:
    """Publish each micro-batch alone."""
    for number in numbers:
        come(archive, number, query=query, days=days)
        merge(archive, number, number, query=query)


def once(*numbers: int, days: Iterable[str] = DAYS) -> Counter[tuple[str, ...]]:
    return Counter((day, SHOP, f"{number}-{row}") for day in days for number in numbers for row in range(ROWS))


def in_files(archive: Path) -> Counter[tuple[str, ...]]:
    listed, found = Files.of(str(archive)), Counter[tuple[str, ...]]()
    for part in listed.published:
        for file in part.files:
            entries = pq.ParquetFile(file).read(["entry"])["entry"].to_pylist()
            found.update((part.date, part.namespace, entry) for entry in entries)
    for file in (file for names in listed.recent.values() for file in names):
        rows = pq.ParquetFile(file).read(["date", "namespace", "entry"]).to_pylist()
        found.update((str(row["date"]), row["namespace"], row["entry"]) for row in rows)
    return found


def in_table(target: Path) -> Counter[tuple[str, ...]]:
    rows = DeltaTable(target).to_pyarrow_dataset().to_table(columns=["date", "namespace", "entry"])
    return Counter((str(row["date"]), row["namespace"], row["entry"]) for row in rows.to_pylist())


async def test_an_export_appends_what_is_published_and_has_the_columns_of_the_archive(tmp_path: Path) -> None:
    archive, target = tmp_path / "archive", tmp_path / "table"
    words = ("archive", "export", "--archive", archive, "--to", "delta", target)
    publish(archive, 0, 1)
    assert (await penstock(*words, "--json")).json == {"exported": 12}
    come(archive, 2)
    assert (await penstock(*words)).text == f"exported 0 events to {target}\n"
    merge(archive, 2, 2)
    assert (await penstock(*words)).text == f"exported 6 events to {target}\n"
    assert (await penstock(*words)).text == f"exported 0 events to {target}\n"
    assert in_table(target) == once(0, 1, 2)
    rows = DeltaTable(target).to_pyarrow_dataset().to_table()
    assert rows.schema.remove_metadata() == delta.SCHEMA
    assert set(rows["message"].to_pylist()) == {b"\xff\x00"}
    assert set(rows["xid"].to_pylist()) == {None}, "a column that files of an older version lack"
    assert pc.unique(rows["at"].cast("int64")).to_pylist() == [START]
    missing = await penstock("archive", "export", "--archive", tmp_path / "none", "--to", "delta", tmp_path / "another")
    assert (missing.status, "there is no archive" in missing.error) == (1, True)
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize("older", [0, 1])
def test_other_readers_read_files_of_older_versions_beside_others_as_the_document_says(
    tmp_path: Path, older: int
) -> None:
    for number, extra in ((older, {}), (1 - older, {"extra": "{}"})):
        write(place(tmp_path / "archive", name_of(number)), [number], event="done", **extra)
    example = next(CODE.finditer((ROOT / "docs/archive.md").read_text()))[1].replace("/data", str(tmp_path))
    for line in example.splitlines()[-4:]:
        example = example.replace(line, f"found.append({line})")
    found = list[Any]()
    exec(example, {"found": found})
    duckdb, polars, pandas, pyarrow = found
    assert duckdb.fetchall() == [("done", 2 * ROWS)]
    assert [len(polars.collect()), len(pandas), pyarrow.count_rows()] == [2 * ROWS] * 3


async def test_without_deltalake_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    come(tmp_path, 0)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, "penstock.spark.delta")
    failed = await penstock("archive", "export", "--archive", tmp_path, "--to", "delta", tmp_path / "table")
    assert (failed.status, failed.error) == (
        1,
        "penstock: deltalake is not installed: pip install 'penstock[delta]'\n",
    )


@pytest.mark.parametrize("settled", [False, True])
def test_an_export_adds_only_what_had_not_been_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    if settled:
        monkeypatch.setattr(delta, "SETTLED_SECONDS", -1)
    archive, target = tmp_path / "archive", tmp_path / "table"
    publish(archive, 0, 1, 2)
    publish(archive, 7, query="other")
    assert export(str(archive), str(target)) == 24
    assert DeltaTable(target).transaction_version("penstock:abc") == (2 if settled else -1)
    come(archive, 3, 4, 5)
    merge(archive, 3, 4)
    assert export(str(archive), str(target)) == 12
    assert in_table(target) == once(0, 1, 2, 3, 4, 7)
    assert in_files(archive) == once(0, 1, 2, 3, 4, 5, 7)
    table = DeltaTable(target)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    version = table.version()
    assert export(str(archive), str(target)) == 0
    assert DeltaTable(target).version() == version


def test_no_thread_of_pyarrow_calls_python_which_may_abort_the_process_as_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did after one of twelve exports."""
    monkeypatch.setattr("deltalake.DeltaTable.to_pyarrow_dataset", None)
    publish(tmp_path / "archive", 0)
    for expected in (once(0), Counter[tuple[str, ...]]()):
        assert export(str(tmp_path / "archive"), str(tmp_path / "table")) == expected.total()


def test_a_micro_batch_that_can_be_seen_late_in_one_day_is_exported(tmp_path: Path) -> None:
    archive, target = tmp_path / "archive", tmp_path / "table"
    publish(archive, 0, 1)
    late = place(archive, name_of(1), DAYS[1]).rename(tmp_path / "late")
    export(str(archive), str(target))
    late.rename(place(archive, name_of(1), DAYS[1]))
    assert export(str(archive), str(target)) == ROWS
    assert in_table(target) == once(0, 1)


def test_what_is_exported_need_not_be_compared_again_though_a_later_day_has_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, target = tmp_path / "archive", tmp_path / "table"
    publish(archive, 0, 1)
    export(str(archive), str(target))
    publish(archive, 2, 3, days=DAYS[:1])
    monkeypatch.setattr(delta, "SETTLED_SECONDS", -1)
    assert export(str(archive), str(target)) == 2 * ROWS
    assert DeltaTable(target).transaction_version("penstock:abc") == 3
    assert in_table(target) == in_files(archive)


def test_a_micro_batch_that_is_published_after_later_ones_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when ``mergeEvery`` has become 0: what is recent waits for the next merge."""
    archive, target = tmp_path / "archive", tmp_path / "table"
    monkeypatch.setattr(delta, "SETTLED_SECONDS", -1)
    publish(archive, 0)
    come(archive, 1)
    publish(archive, 2)
    export(str(archive), str(target))
    merge(archive, 1, 1)
    export(str(archive), str(target))
    assert in_table(target) == in_files(archive) == once(0, 1, 2)


def test_a_directory_of_another_name_is_exported_once(tmp_path: Path) -> None:
    archive, target = tmp_path / "archive", tmp_path / "table"
    write(place(archive, "mine"), [0])
    assert [export(str(archive), str(target)) for _ in range(2)] == [ROWS, 0]
    assert in_table(target) == once(0, days=DAYS[:1])


def test_random_steps_leave_each_event_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, target, chance = tmp_path / "archive", tmp_path / "table", random.Random(19)
    known, published, whole = 0, -1, -1
    come(archive, known)
    for _ in range(25):
        step = chance.choice(("come", "come", "merge", "merge and leave", "settle", "export"))
        if step == "come":
            known += 1
            come(archive, known)
        elif step == "settle":
            monkeypatch.setattr(delta, "SETTLED_SECONDS", -delta.SETTLED_SECONDS)
        elif step == "export":
            export(str(archive), str(target))
            assert in_table(target) == once(*range(whole + 1))
        else:
            finish(archive)
            merge(archive, published + 1, known, ends=step == "merge")
            whole, published = known if step == "merge" else published, known
        assert in_files(archive) == once(*range(known + 1)), step
    finish(archive)
    merge(archive, published + 1, known)
    export(str(archive), str(target))
    assert in_table(target) == once(*range(known + 1))


KILLED: Final = """
import os, signal, sys
from penstock.spark import delta

left = 0

def counted(*words, **named):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return before(*words, **named)

archive, target, moment = sys.argv[1:]
moments = {"create": ("_table", 0), "read": ("_converted", 1), "commit": ("_commit", 0), "next": ("_commit", 1)}
name, left = moments[moment]
before = getattr(delta, name)
setattr(delta, name, counted)
delta.export(archive, target)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["create", "read", "commit", "next"])
async def test_an_export_that_was_killed_is_repeated(tmp_path: Path, moment: str) -> None:
    archive, target = tmp_path / "archive", tmp_path / "table"
    publish(archive, 0, 1, 2)
    process = await create_subprocess_exec(sys.executable, "-c", KILLED, archive, target, moment)
    assert await process.wait() == -signal.SIGKILL
    there = in_table(target) if moment != "create" else Counter()
    if moment == "create":
        (target / "_delta_log").mkdir(parents=True)
        (target / "_delta_log" / "_commit_1.json.tmp").touch()
    assert there == (once(0, 1, 2, days=DAYS[:1]) if moment == "next" else Counter())
    export(str(archive), str(target))
    assert in_table(target) == once(0, 1, 2)


def test_of_two_exports_at_a_time_one_fails_and_each_event_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, target, commit = tmp_path / "archive", tmp_path / "table", delta._commit
    publish(archive, 0)

    def late(table: DeltaTable, *words: Any, **named: Any) -> None:
        monkeypatch.setattr(delta, "_commit", commit)
        export(str(archive), str(target))
        commit(table, *words, **named)

    monkeypatch.setattr(delta, "_commit", late)
    with pytest.raises(ExportFailed, match="another export has written meanwhile: try again"):
        export(str(archive), str(target))
    assert export(str(archive), str(target)) == 0
    assert in_table(target) == once(0)


def after(function: Callable[..., Any], calls: int, act: Callable[[], object]) -> Callable[..., Any]:
    """Return ``function``, with a call of ``act`` before the last of its ``calls`` calls."""
    left = calls

    def called(*words: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            act()
        return function(*words, **named)

    return called


def test_an_export_during_a_merge_leaves_to_the_next_one_what_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, target = tmp_path / "archive", tmp_path / "table"
    publish(archive, 0)
    come(archive, 1, 2)
    monkeypatch.setattr(delta, "_table", after(delta._table, 1, lambda: merge(archive, 1, 2, ends=False)))
    assert export(str(archive), str(target)) == 6
    finish(archive)
    assert export(str(archive), str(target)) == 12
    assert in_table(target) == once(0, 1, 2)


def test_a_damaged_file_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    archive, target = tmp_path / "archive", tmp_path / "table"
    publish(archive, 0)
    export(str(archive), str(target))
    publish(archive, 1, 2)
    [file] = place(archive, name_of(2)).glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ExportFailed, match=r"(?i)parquet"):
        export(str(archive), str(target))
    assert in_table(target) == once(0)
    file.write_bytes(whole)
    assert export(str(archive), str(target)) == 12
    assert in_table(target) == once(0, 1, 2)


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    archive, other = tmp_path / "archive", tmp_path / "other"
    come(archive, 0)
    (tmp_path / "file").write_text("mine")
    DeltaTable.create(other, pa.schema([("mine", pa.string())]))
    for target, words in (
        (archive, "is neither a Delta table nor an empty directory"),
        (tmp_path / "file", "is neither a Delta table nor an empty directory"),
        (other, "is a table of something else: it has no at, attempt, batch"),
    ):
        with pytest.raises(ExportFailed, match=words):
            export(str(archive), str(target))
    with pytest.raises(NoArchive):
        export(str(other), str(tmp_path / "none"))


@pytest.mark.parametrize("url", ["file:", "file://"])
def test_an_archive_may_be_named_by_a_url_as_in_spark(tmp_path: Path, url: str) -> None:
    publish(tmp_path, 0)
    require_archive(f"{url}{tmp_path}")
    listed = Files.of(f"{url}{tmp_path}")
    assert [each.batch for each in listed.published] == [name_of(0)] * len(DAYS)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_merge_while_files_are_listed_hides_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    come(tmp_path, 0, 1, 2)
    monkeypatch.setattr(files, "_data_files", after(files._data_files, calls, lambda: merge(tmp_path, 0, 2)))
    assert in_files(tmp_path) == once(0, 1, 2)


def test_what_is_claimed_counts_below_events_once_that_is_said(tmp_path: Path) -> None:
    come(tmp_path, 0, 1)
    merge(tmp_path, 0, 1, ends=False)
    claim = tmp_path / "recent" / PUBLISHING
    text, whole = claim.read_text(), claim.with_name(PUBLISHED)
    other = str(Claim(Batches("xyz", 0, 1), [], "other", {}))
    again = str(Claim(Batches("abc", 0, 1), [name_of(0), name_of(1)], "another", {}))  # then the first one is void
    for said, counts in ((None, False), (text, True), (other, False), (again, True), (text[:-9], False)):
        whole.unlink(missing_ok=True)
        if said:
            whole.write_text(said)
        listed = Files.of(str(tmp_path))
        assert ({*listed.recent}, len(listed.published)) == ((set(), 2) if counts else ({name_of(0), name_of(1)}, 0))
    shutil.rmtree(tmp_path / "events")
    claim.write_text(text[:-9])
    assert in_files(tmp_path) == once(0, 1), "it was cut off, so nothing is published"
