"""penstock report: tables, JSON and a page, or clear words."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli._frame import Failed
from penstock.cli.report import ReportRequest, make_report, replacing
from penstock.spark import tables
from penstock.spark.lifecycles import Message
from penstock.spark.page import page
from penstock.spark.report import Backlog, Report, Section, Times
from penstock.spark.time_axis import TimeAxis
from tests.commandline import ROOT, penstock
from tests.spark import pytestmark  # noqa: F401
from tests.spark.generated_events import NOON, archive, generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVIL = '<script>alert("1")</script>&$x_1$'
AXIS = TimeAxis(NOON, 60, 4)
TIMES = Times(
    3, 1.5, 3.0, {"p50": 1.0, "p95": 3.0, "p99": 3.0}, {name: [1.0, None, 2.0, 3.0] for name in ("p50", "p95", "p99")}
)
SECTION = Section(
    namespace=EVIL,
    totals={"registered": 5, "done": 3, "timeout": 1, "dead": 1},
    counts={"registered": [5, 0, 0, 0], "done": [1, 0, 1, 1], "timeout": [0, 1, 0, 0], "dead": [0, 1, 0, 0]},
    times={"done": TIMES},
    histogram={"done": [3] + [0] * 10, "timeout": [0] * 10 + [1]},
    unmeasured=0,
    dead={"timeout": [0, 1, 0, 0], "failed": [0, 0, 0, 0], "unknown": [0, 0, 0, 0]},
    backlog=Backlog(2, True, [6, 5, 4, 3]),
    slowest=[Message("7", EVIL, EVIL, "1", 2, 12.5, NOON + 20.0, "done")],
)
REPORT = Report("/archive", None, NOON + 300.0, NOON + 1.0, NOON + 200.0, AXIS, [SECTION])


class Reader(HTMLParser):
    """Parses a page as a browser would."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def ids(self) -> list[str]:
        return [found for _, words in self.tags if (found := words.get("id"))]


@pytest.fixture
def found(tmp_path: Path) -> ReportRequest:
    return ReportRequest(archive(tmp_path / "archive", generate(60, 1)), "shop", None, None)


def test_a_page_is_one_file_with_escaped_names() -> None:
    text = page(REPORT)
    read = Reader(text)
    assert not read.open
    assert "script" not in {tag for tag, _ in read.tags}
    assert {tag for tag, _ in read.tags} & {"link", "img", "iframe", "image"} == set()
    assert not re.search(r"https?:|//|@import|src=", text), "nothing is fetched"
    assert "&lt;script&gt;" in text
    assert all((words.get("xlink:href") or "#").startswith("#") for _, words in read.tags)


def test_every_plot_says_what_it_shows_and_has_its_numbers_as_a_table() -> None:
    text = page(replace(REPORT, sections=[SECTION, replace(SECTION, namespace="other")]))
    read = Reader(text)
    plots = [words for tag, words in read.tags if tag == "svg"]
    assert len(plots) == 10
    ids = read.ids()
    assert len(ids) == len(set(ids))
    for words in plots:
        assert words["role"] == "img"
        assert {*str(words["aria-labelledby"]).split()} <= {*ids}
    assert {*re.findall(r"url\(#([^)]*)\)", text)} <= {*ids}
    assert [tag for tag, _ in read.tags].count("details") == 10
    assert {"Throughput", "Response time", "Backlog", "Timeouts and dead letters"} <= {
        *re.findall(r"<h3>([^<]*)", text)
    }
    assert "<h2>Compared</h2>" in text
    assert "Penstock " in text


@pytest.mark.parametrize(
    "known", [(0.012, 0.37), (0.02, 0.7), (0.9, 30.0), (0.001, 9.0), (1e-4, 86_400.0), (3.0, 4.0), (0.0, 1e6)]
)
def test_no_label_of_a_plot_shows_the_source_of_its_formula(known: tuple[float, float]) -> None:
    low, high = known
    times = replace(TIMES, over_time={name: [low, None, high, high / 2] for name in TIMES.over_time})
    text = page(replace(REPORT, sections=[replace(SECTION, namespace="shop", slowest=[], times={"done": times})]))
    assert "$" not in text
    assert "mathdefault" not in text
    (plot,) = re.findall(r'<svg [^>]*labelledby="n0b-.*?</svg>', text, re.DOTALL)
    values = [float(label) for label in re.findall(r"<text[^>]*>([\d.e+-]+)</text>", plot)]
    assert len(set(values)) >= 3, "an axis has some labels that tell how much"


def test_numbers_are_to_the_right_in_every_table() -> None:
    text = page(REPORT)
    assert "overflow-wrap: anywhere }\nth" not in text
    assert '<td class="number">12.500</td><td class="moment">2026-01-01 12:00:20</td><td class="text">done</td>' in text
    assert '<td class="text">registered</td><td class="number">5</td><td class="number">0.021</td>' in text
    assert ".number { text-align: right }" in text


WIDE = Report(
    *("/archive", None, NOON + 300.0, NOON + 1.0, NOON + 200.0, AXIS),
    [
        replace(
            SECTION,
            namespace=name,
            totals=dict.fromkeys(tables.KINDS, 1_751_800),
            slowest=[
                Message("7", f"{name}-{'0123456789abcdef' * 4}", f"{name}:out", "1", 2, 12.5, NOON + 20.0, "done")
            ],
        )
        for name in ("tracked:alert", "tracked:archive")
    ],
)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MEASURE = """
<iframe id=page style="border: 0; width: WIDTHpx; height: 900px" srcdoc="PAGE"></iframe>
<script>
page.onload = () => {
  const each = (what) => [...page.contentDocument.querySelectorAll(what)]
  const whole = each("td.number, td.moment, td.text, th").filter((cell) => !/0123456789abcdef/.test(cell.textContent))
  const words = whole.flatMap((cell) => {
    const text = cell.firstChild
    return [...text.textContent.matchAll(/[^ ]+/g)].filter((word) => {
      const range = page.contentDocument.createRange()
      range.setStart(text, word.index), range.setEnd(text, word.index + word[0].length)
      return new Set([...range.getClientRects()].map((part) => part.top)).size > 1
    }).map((word) => word[0])
  })
  const sizes = each("svg text").map((text) => {
    const matrix = text.getScreenCTM()
    return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b)
  })
  document.body.textContent = JSON.stringify({
    broken: words,
    cut: each(".wide").filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.ariaLabel),
    spills: page.contentDocument.documentElement.scrollWidth > WIDTH,
    smallest: Math.min(...sizes),
    left: each("td.number").filter((cell) => getComputedStyle(cell).textAlign !== "right").length,
  })
}
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_breaks_no_number_cuts_no_column_and_shows_plots_that_can_be_read(width: int, tmp_path: Path) -> None:
    text = page(WIDE).replace("<details>", "<details open>")
    file = tmp_path / "measure.html"
    file.write_text(MEASURE.replace("WIDTH", str(width)).replace("PAGE", escape(text)))
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    words = [str(BROWSER), "--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in quiet)]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--dump-dom", file.as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
    make_report = json.loads(unescape(re.search(r"<body>(\{.*\})</body>", shown, re.DOTALL)[1]))  # type: ignore[index]
    assert (make_report["broken"], make_report["left"], make_report["spills"]) == ([], 0, False)
    assert make_report["smallest"] >= 9, "pixels"
    assert width < 1280 or make_report["cut"] == []


def test_empty_parts_are_stated_in_words() -> None:
    empty = {"times": {}, "histogram": {"done": [0] * 11, "timeout": [0] * 11}, "slowest": []}
    less: Any = {**empty, "totals": {"registered": 5}, "counts": {"registered": [5, 0, 0, 0]}}
    nobody_died = {reason: [0] * 4 for reason in SECTION.dead}
    text = page(replace(REPORT, sections=[replace(SECTION, dead=nobody_died, **less)]))
    assert text.count("<svg") == 2
    assert "No message was done." in text
    assert "dead letters: none" in text


def test_a_page_can_be_made_from_a_zip_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "penstock.zip", "w") as packed:
        for file in (ROOT / "penstock").rglob("*"):
            if file.suffix in (".py", ".jinja", ".lua"):
                packed.write(file, file.relative_to(ROOT))
    code = "import penstock.spark.page as page; print(page.__file__); print(len(page.template()))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, 'penstock.zip'); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    place, length = done.stdout.split()
    assert "penstock.zip" in place
    assert int(length) > 1000


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
