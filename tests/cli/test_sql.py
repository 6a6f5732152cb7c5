"""penstock sql: the archive answers in SQL, each event once, also while files are merged."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from penstock.spark.claims import PUBLISHED, PUBLISHING, Batches, Claim
from tests.support.commandline import penstock

duckdb = pytest.importorskip("duckdb")
BEGIN = datetime(2026, 11, 21, 18, tzinfo=UTC)


class Row(NamedTuple):
    """An event, by what differs between tests."""

    event: str
    id: str
    attempt: int
    at: float
    """Seconds after ``BEGIN``."""
    seconds: float | None = None


LIFE = [
    Row("registered", "1", 0, 0),
    Row("delivered", "1", 1, 1),
    Row("timeout", "1", 1, 11, 10),
    Row("retry", "1", 2, 11),
    Row("delivered", "1", 2, 11),
    Row("done", "1", 2, 13, 2),
    Row("registered", "2", 0, 20),
    Row("delivered", "2", 1, 20),
    Row("failed", "2", 1, 21, 1),
    Row("dead", "2", 1, 21, 1),
    Row("registered", "3", 0, 3_700),
    Row("delivered", "3", 1, 3_700),
    Row("done", "3", 1, 3_704, 4),
    Row("registered", "4", 0, 3_800),
]


def write(archive: Path, rows: Sequence[Row], batch: str, namespace: str = "shop:a b", *, recent: bool = False) -> None:
    """Write events as the pipeline does, as one directory of micro-batches."""
    below = "recent" if recent else f"events/date=2026-11-21/namespace={quote(namespace, safe=' ')}"
    place = archive / below / f"batch={batch}"
    place.mkdir(parents=True)
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE rows (entry VARCHAR, place INTEGER, number BIGINT, event VARCHAR, id VARCHAR, xid VARCHAR,"
            ' "at" TIMESTAMP, queue VARCHAR, service VARCHAR, attempt INTEGER, seconds DOUBLE)'
        )
        for number, row in enumerate(rows):
            at = (BEGIN + timedelta(seconds=row.at)).replace(tzinfo=None)
            values = [
                f"{number}-0",
                0,
                number,
                row.event,
                row.id,
                f"x{row.id}",
                at,
                "out",
                "1",
                row.attempt,
                row.seconds,
            ]
            connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        more = f", DATE '2026-11-21' AS date, '{namespace}' AS namespace" if recent else ""
        connection.execute(f"COPY (SELECT *{more} FROM rows) TO '{place}/part-0.parquet'")


async def asked(archive: Path, query: str) -> Any:
    found = await penstock("sql", query, "--archive", str(archive), "--json")
    assert found.status == 0, found.error
    return found.json


async def test_messages_attempts_response_times_and_dead_letters_are_views(tmp_path: Path) -> None:
    write(tmp_path, LIFE, "abc-000000001")
    messages = await asked(tmp_path, "select id, attempts, outcome, reason, seconds from messages order by id")
    assert [list(each.values()) for each in messages] == [
        ["1", 2, "done", None, 13],
        ["2", 1, "dead", "failed", 1],
        ["3", 1, "done", None, 4],
        ["4", 0, "open", None, None],
    ]
    attempts = await asked(tmp_path, "select id, attempt, outcome, seconds from attempts order by 1, 2")
    assert [list(each.values()) for each in attempts] == [
        ["1", 1, "timeout", 10],
        ["1", 2, "done", 2],
        ["2", 1, "failed", 1],
        ["3", 1, "done", 4],
    ]
    hours = await asked(tmp_path, "select hour, done, mean, p50 from response_times order by hour")
    assert [list(each.values()) for each in hours] == [
        ["2026-11-21 18:00:00", 1, 2, 2],
        ["2026-11-21 19:00:00", 1, 4, 4],
    ]
    [dead] = await asked(tmp_path, "from dead_letters")
    assert (dead["namespace"], dead["reason"], dead["messages"]) == ("shop:a b", "failed", 1)


async def test_each_event_counts_once_while_directories_are_published(tmp_path: Path) -> None:
    names = [f"abc-{number:09d}" for number in range(len(LIFE))]
    for name, row in zip(names, LIFE, strict=True):
        write(tmp_path, [row], name, recent=True)
    count = 'select namespace, count(*) as events, count(distinct "at") as times from events group by all'
    every = [{"namespace": "shop:a b", "events": len(LIFE), "times": len({row.at for row in LIFE})}]
    assert await asked(tmp_path, count) == every
    write(tmp_path, LIFE[:5], "abc-000000000..000000004")
    claim = str(Claim(Batches("abc", 0, 4), names[:5], "aside", {}))
    for name in (PUBLISHING, PUBLISHED):
        (tmp_path / "recent" / name).write_text(claim)
        assert await asked(tmp_path, count) == every


async def test_without_a_query_the_views_are_shown_and_a_table_says_what_it_leaves_out(tmp_path: Path) -> None:
    write(tmp_path, LIFE, "abc-000000001")
    shown = await penstock("sql", "--archive", str(tmp_path), "--json")
    assert [each["view"] for each in shown.json] == ["events", "messages", "attempts", "response_times", "dead_letters"]
    table = await penstock("sql", "select id from messages order by id", "--archive", str(tmp_path), "--rows", "2")
    assert "4 rows, of which 2" in table.text
    assert "3" not in table.text.partition("rows")[2].replace("of which", "")


@pytest.mark.parametrize(
    ("query", "word"),
    [("selekt 1", "selekt"), ("select nothing_like_it from events", "nothing_like_it"), ("drop view events", "")],
)
async def test_what_duckdb_refuses_is_said(tmp_path: Path, query: str, word: str) -> None:
    write(tmp_path, LIFE, "abc-000000001")
    found = await penstock("sql", query, "--archive", str(tmp_path))
    assert (found.status, word in found.error) == ((0 if query.startswith("drop") else 1), True)


async def test_a_folder_without_an_archive_and_an_empty_archive_are_told_apart(tmp_path: Path) -> None:
    missing = await penstock("sql", "from events", "--archive", str(tmp_path))
    assert missing.status == 1
    assert "there is no archive" in missing.error
    elsewhere = await penstock("sql", "select 1", "--archive", "hdfs://name:8020/archive")
    assert "hdfs://name:8020/archive: expected a directory of this machine" in elsewhere.error
    (tmp_path / "events").mkdir()
    assert await asked(tmp_path, "from messages") == []
