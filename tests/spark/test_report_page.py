"""The page of a report, as text and in a browser."""

import re
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.peers.install import FromNpm
from penstock.spark.page import page
from penstock.spark.scales import linear, logarithmic
from penstock.spark.time_axis import MAX_TICKS, TimeAxis
from penstock.testing.chaos.faults import Injection
from penstock.testing.chaos.random_faults import FAULTS
from penstock.testing.chaos.report import page as chaos_page
from penstock.testing.chaos.run import FaultResult
from penstock.testing.chaos.run import Report as ChaosReport
from tests.bus.browser import Page, browser
from tests.bus.node import from_npm
from tests.spark.reports import REPORT, SECTION, TIMES, WIDE
from tests.support.commandline import ROOT

AXE = FromNpm({"axe-core": "4.14.1"})
SIZES = [(1280, False), (1280, True), (720, False), (400, False), (400, True)]
"""Width in pixels, and whether the page is dark."""
FAULTED = [
    FaultResult(
        Injection(place, fault),
        lane=place % 4,
        begun=place * 3.0,
        ended=place * 3.0 + 0.01,
        met=place != 1,
        stall=4.25 * (place == 2),
        pushed=12_000,
        lost=3 * (place == 3),
        doubled=11_000,
        reordered=0,
        broken=3 * (place == 3),
        whereabouts=("orders:pending:0123456789abcdef",),
    )
    for place, fault in enumerate([*FAULTS, "server restart + CLIENT PAUSE"])
]
CHAOS = ChaosReport(1, [], FAULTED, 30.0, ["orders: taken 5 = delivered 4 + <missing>"])
MEASURE = """
const each = (what) => [...document.querySelectorAll(what)];
const broken = [];
for (const cell of each("td.number, td.moment, td.text, th, dd, dt, .moment")) {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const word of texts.currentNode.textContent.matchAll(/[^ ]+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((box) => box.top));
      if (lines.size > 1 && !word[0].includes("0123456789abcdef")) broken.push(word[0]);
    }
  }
}
const overlapping = each(".plot > svg").flatMap((plot) => {
  const texts = [...plot.querySelectorAll("text")].filter((text) => getComputedStyle(text).display !== "none");
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
    .map(([other]) => `${one} and ${other}`));
});
const outside = each(".plot text").filter((text) => {
  const card = text.closest(".card").getBoundingClientRect();
  const box = text.getBoundingClientRect();
  return box.width && (box.left < card.left || box.right > card.right || box.bottom > card.bottom);
});
return {
  broken,
  overlapping,
  outside: outside.map((text) => text.textContent),
  cut: each(".wide").filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.ariaLabel),
  spills: document.documentElement.scrollWidth > innerWidth,
  small: each("body *").filter((part) => parseFloat(getComputedStyle(part).fontSize) < 9).map((part) => part.outerHTML),
  left: each("td.number").filter((cell) => getComputedStyle(cell).textAlign !== "right").length,
  paper: getComputedStyle(document.body).backgroundColor,
};
"""
FINE = {"broken": [], "overlapping": [], "outside": [], "spills": False, "small": [], "left": 0}


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


def test_a_page_is_one_file_with_escaped_names() -> None:
    text = page(REPORT)
    read = Reader(text)
    assert not read.open
    tags = [tag for tag, _ in read.tags]
    assert tags.count("script") == 1
    assert {*tags} & {"link", "img", "iframe", "image"} == set()
    assert not re.search(r"https?:|//|@import|src=|url\(", re.sub("'sha256-[^']*'", "", text)), "nothing is fetched"
    assert "&lt;script&gt;" in text
    assert all((words.get("href") or "#").startswith("#") for _, words in read.tags)


def test_every_plot_says_what_it_shows_and_has_its_numbers_as_a_table() -> None:
    text = page(replace(REPORT, sections=[SECTION, replace(SECTION, namespace="other")]))
    read = Reader(text)
    plots = [words for tag, words in read.tags if tag == "svg" and "role" in words]
    assert len(plots) == 14
    ids = read.ids()
    assert len(ids) == len(set(ids))
    for words in plots:
        assert words["role"] == "img"
        assert words["aria-label"]
        assert words["aria-describedby"] in ids
    assert [tag for tag, _ in read.tags].count("details") == 10
    assert {"Throughput", "Response time", "Backlog", "Timeouts and dead letters"} <= {
        *re.findall(r"<h3>([^<]*)", text)
    }
    assert "<h2>Compared</h2>" in text
    assert "Penstock " in text


def test_a_page_of_chaos_says_what_broke_and_shows_each_fault() -> None:
    text = chaos_page(CHAOS, "compose/<shop>")
    assert not Reader(text).open
    assert "compose/&lt;shop&gt;" in text
    assert "delivered 4 + &lt;missing&gt;" in text
    assert "<li>swallowed packet" not in text
    assert "<li>SCRIPT FLUSH" in text, "the one that broke its promise"
    drawn = re.findall(r'<g style="color: var\(--(\w+)\)" class="area"><path class="area" d="([^"]*)"', text)
    assert {colour: path.count("M") for colour, path in drawn} == {
        "green": len(FAULTED) - 3,
        "orange": 1,
        "grey": 1,
        "red": 1,
    }


@pytest.mark.parametrize(
    "known", [(0.012, 0.37), (0.02, 0.7), (0.9, 30.0), (0.001, 9.0), (1e-4, 86_400.0), (3.0, 4.0), (0.0, 1e6)]
)
def test_a_vertical_axis_has_at_least_three_labels_without_exponents(known: tuple[float, float]) -> None:
    low, high = known
    times = replace(TIMES, over_time={name: [low, None, high, high / 2] for name in TIMES.over_time})
    text = page(replace(REPORT, sections=[replace(SECTION, namespace="shop", slowest=[], times={"done": times})]))
    panels = re.findall(r'<svg role="img" aria-label="Response time, done.*?</svg>', text, re.DOTALL)
    values = [
        float(label.replace(",", "").replace(" M", "e6")) for label in re.findall(r'class="y"[^>]*>([^<]*)<', panels[0])
    ]
    assert len(set(values)) >= 3, "an axis has some labels that tell how much"


def test_numbers_are_to_the_right_in_every_table() -> None:
    text = page(REPORT)
    assert '<td class="number">12.500</td><td class="moment">2026-01-01 12:00:20</td><td class="text">done</td>' in text
    assert '<td class="text">registered</td><td class="number">5</td><td class="number">0.021</td>' in text
    assert ".number { text-align: right }" in text


def test_empty_parts_are_stated_in_words() -> None:
    empty = {"times": {}, "histogram": {"done": [0] * 11, "timeout": [0] * 11}, "slowest": []}
    less: Any = {**empty, "totals": {"registered": 5}, "counts": {"registered": [5, 0, 0, 0]}}
    nobody_died = {reason: [0] * 4 for reason in SECTION.dead}
    text = page(replace(REPORT, sections=[replace(SECTION, dead=nobody_died, **less)]))
    assert text.count("<svg role") == 3, "throughput and backlog"
    assert "No message was done." in text
    assert "dead letters: none" in text


def test_a_page_can_be_made_from_a_zip_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "penstock.zip", "w") as packed:
        for file in (ROOT / "penstock").rglob("*"):
            if file.suffix in (".py", ".jinja", ".js", ".lua"):
                packed.write(file, file.relative_to(ROOT))
    both = "len(page.resource(page.TEMPLATE)), len(page.resource(page.SCRIPT))"
    code = f"import penstock.spark.page as page; print(page.__file__, {both})"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, 'penstock.zip'); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    place, *lengths = done.stdout.split()
    assert "penstock.zip" in place
    assert all(int(length) > 1000 for length in lengths)


@given(st.floats(0, 4e9), st.floats(0, 1e9))
@example(686_296_800.0, 1_425_600.0)
def test_ticks_are_round_moments_that_are_not_too_many(first: float, length: float) -> None:
    axis = TimeAxis.over(first, first + length)
    shares = [share for share, _ in axis.ticks]
    assert shares == sorted({*shares})
    assert all(0 <= share <= 1 for share in shares)
    assert 2 <= len(shares) <= MAX_TICKS


def test_ticks_say_the_day_at_midnight_and_the_year_in_january() -> None:
    assert [text for _, text in TimeAxis(0, 3_600, 30).ticks] == ["1 Jan", "06:00", "12:00", "18:00", "2 Jan", "06:00"]
    assert [text for _, text in TimeAxis(0, 86_400 * 6, 100).ticks] == [
        "1970",
        "Apr",
        "Jul",
        "Oct",
        "1971",
        "Apr",
        "Jul",
    ]


@given(st.lists(st.floats(0, 1e12, allow_subnormal=False), max_size=9), st.booleans())
def test_a_scale_covers_its_values_with_a_few_ticks(values: list[float], whole: bool) -> None:
    scale = linear(values, whole=whole)
    assert 2 <= len(scale.ticks) <= 7
    assert all(0 <= scale.depth(value) <= 100 for value in values)
    assert len({*scale.labels}) == len(scale.labels) or max(values) < 1e-6
    assert not whole or all(tick == int(tick) for tick in scale.ticks)


@given(st.floats(1e-3, 1e6), st.floats(30, 1e9))
def test_a_logarithmic_scale_covers_its_values(low: float, ratio: float) -> None:
    scale = logarithmic(low, low * ratio)
    assert scale.ticks[0] <= low
    assert scale.ticks[-1] >= low * ratio
    assert len({*scale.labels}) == len(scale.labels) <= 14


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[Page]:
    async with opened(page(WIDE), tmp_path) as found:
        yield found


@asynccontextmanager
async def opened(text: str, folder: Path) -> AsyncIterator[Page]:
    """Yield a browser at a page, with all details open."""
    file = folder / "report.html"
    file.write_text(text.replace("<details>", "<details open>"))
    async with browser(folder / "profile") as found:
        await found.open(file.as_uri())
        yield found


async def look(shown: Page, width: int, dark: bool) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await shown.call("Emulation.setEmulatedMedia", features=[scheme])
    await shown.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
    )


@pytest.mark.parametrize(("text", "narrowest"), [(page(WIDE), 1280), (chaos_page(CHAOS, "compose/shop"), 400)])
async def test_no_number_is_broken_and_nothing_is_cut_light_and_dark(text: str, narrowest: int, tmp_path: Path) -> None:
    """A table wider than the page has a scroll bar of its own; from ``narrowest`` pixels on, none is."""
    papers = set()
    async with opened(text, tmp_path) as shown:
        for width, dark in SIZES:
            await look(shown, width, dark)
            found = await shown.run(MEASURE)
            papers.add(found.pop("paper"))
            cut = found.pop("cut")
            assert (width, found) == (width, FINE)
            assert width < narrowest or cut == []
    assert len(papers) == 2


async def test_axe_finds_nothing_to_object_to_light_and_dark(tmp_path: Path) -> None:
    modules = from_npm(AXE).environment["NODE_PATH"]
    axe = (Path(modules) / "axe-core" / "axe.min.js").read_text()
    two = replace(REPORT, sections=[SECTION, replace(SECTION, namespace="other", slowest=SECTION.slowest * 2)])
    async with opened(page(two), tmp_path) as shown:
        await shown.run(axe)
        await shown.run("document.querySelector('th button').click(); document.querySelector('.cursor').focus()")
        for width, dark in SIZES:
            await look(shown, width, dark)
            found = await shown.run(
                """
                const { violations, passes } = await axe.run();
                return [violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]), passes.length];
                """
            )
            assert found[0] == []
            assert found[1] > 20, "rules that the page passed"


async def test_a_click_or_a_key_sorts_a_table(shown: Page) -> None:
    await shown.run(
        """
        const tables = [...document.querySelectorAll("table:not(.tip)")];
        window.table = tables.find(({ caption }) => caption.textContent.startsWith("slowest"));
        window.column = (place) => [...table.tBodies[0].rows].map((row) => row.cells[place].textContent);
        window.sorted = () =>
          [...table.querySelectorAll("[aria-sort]")].map((head) => [head.textContent, head.ariaSort]);
        """
    )
    seconds = await shown.run("table.querySelectorAll('button')[5].click(); return [column(5), sorted()]")
    assert seconds == [[f"{1_200 / number:,.3f}" for number in range(20, 0, -1)], [["seconds", "ascending"]]]
    await shown.run("table.querySelectorAll('button')[5].focus()")
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
    await shown.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **enter)
    await shown.call("Input.dispatchKeyEvent", type="keyUp", **enter)
    assert await shown.run("return [column(5)[0], sorted()]") == ["1,200.000", [["seconds", "descending"]]]
    ids = await shown.run("table.querySelector('button').click(); return [column(0), sorted()]")
    assert ids == [[str(number) for number in range(1, 21)], [["id", "ascending"]]]


async def test_the_pointer_and_the_arrow_keys_show_the_values_of_a_bucket(shown: Page) -> None:
    await look(shown, 400, False)
    found = await shown.run(
        """
        window.plot = document.querySelector(".plot");
        window.cursor = plot.querySelector(".cursor");
        const box = plot.querySelector("svg").getBoundingClientRect();
        scrollBy(0, box.top - 100);
        return [box.left + 0.505 * box.width, 150];
        """
    )
    await shown.call("Input.dispatchMouseEvent", type="mouseMoved", x=found[0], y=found[1])
    told = "return [cursor.ariaValueText, plot.querySelector('.tip').checkVisibility()]"
    counts = WIDE.sections[0].counts["done"]
    text, visible = await shown.run(told)
    assert visible
    assert text.startswith("2026-01-01 12:00:00: ")
    assert f"done {counts[50]:,}," in text
    await shown.run("cursor.focus()")
    right = {"key": "ArrowRight", "code": "ArrowRight", "windowsVirtualKeyCode": 39}
    await shown.call("Input.dispatchKeyEvent", type="keyDown", **right)
    text, visible = await shown.run(told)
    assert (visible, f"done {counts[51]:,}," in text) == (True, True)
    await shown.run("cursor.blur()")
    assert (await shown.run(told))[1] is False
