"""penstock report: tables, JSON and a page, or clear words."""

import json
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.cli._frame import Failed
from penstock.cli.report import ReportRequest, make_report, replacing
from tests.spark import SparkSession
from tests.spark.generated_events import archive, generate
from tests.spark.reports import EVIL, REPORT, SECTION
from tests.support.commandline import penstock


@pytest.fixture
def found(tmp_path: Path) -> ReportRequest:
    return ReportRequest(archive(tmp_path / "archive", generate(60, 1)), "shop", None, None)


def test_page_json_and_tables_show_the_same(
    spark: "SparkSession", found: ReportRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.html"
    assert make_report(lambda: nullcontext(spark), found, str(file), True) == 0
    said = json.loads(capsys.readouterr().out)
    (section,) = said["sections"]
    assert section["totals"]["registered"] == 60
    slowest = section["slowest"][0]
    text = file.read_text()
    assert f'<td class="text">{slowest["xid"]}</td>' in text
    assert "<h2>shop</h2>" in text
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["report.html"]


def test_tables_are_readable(
    monkeypatch: pytest.MonkeyPatch, spark: "SparkSession", found: ReportRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.cli.report._made", lambda *_: replace(REPORT, sections=[SECTION, SECTION]))
    assert make_report(lambda: nullcontext(spark), found, None, False) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert ["registered", "5", "0.021"] in cells
    assert ["done", "3", "1.500", "1.000", "3.000", "3.000", "3.000"] in cells
    assert ["7", EVIL, EVIL, "1", "2", "12.500", "2026-01-01 12:00:20", "done"] in cells
    assert any("2 open at the beginning, 3 at the end; 2026-01-01 12:00:01 to" in line for line in lines)
    assert "namespaces" in lines


@pytest.mark.parametrize(
    "asked", [{"namespace": "nobody"}, {"namespace": None, "since": datetime(2027, 1, 1, tzinfo=UTC)}]
)
def test_an_empty_result_says_what_exists(spark: "SparkSession", found: ReportRequest, asked: dict[str, Any]) -> None:
    with pytest.raises(Failed, match=r"shop has .* from 2026-01-01 12:00:01 to 2026-01-01 12:01:") as error:
        make_report(lambda: nullcontext(spark), replace(found, **asked), None, False)
    assert ("of nobody" if asked["namespace"] else "since 2027-01-01 00:00:00") in str(error.value)


def test_an_unwritable_file_is_reported_before_spark_starts(found: ReportRequest, tmp_path: Path) -> None:
    def session() -> Any:
        raise AssertionError("too late")

    (tmp_path / "directory").mkdir()
    for file in ("gone/report.html", "directory"):
        with pytest.raises(Failed, match="--html"):
            make_report(session, found, str(tmp_path / file), False)


def test_a_page_replaces_the_old_one_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")
    with suppress(RuntimeError), replacing(str(file)) as write:
        write("half")
        raise RuntimeError
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("report.html", "old")]
    with replacing(str(file)) as write:
        write("new")
        assert file.read_text() == "old"
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("report.html", "new")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a namespace, or --all"),
        (["shop", "--all"], "not both"),
        (["shop", "--since", "yesterday"], "--since 'yesterday': expected"),
        (["shop", "--since", "1h", "--until", "2h"], "nothing between"),
    ],
)
async def test_a_usage_error_is_reported(words: list[str], said: str) -> None:
    result = await penstock("report", *words, "--archive", "nowhere")
    assert (result.status, result.out) == (2, b"")
    assert said in result.error


def test_json_is_complete() -> None:
    assert json.loads(json.dumps(asdict(REPORT)))["sections"][0]["backlog"]["over_time"] == [6, 5, 4, 3]
