"""Checks of all documents: links, anchors, named files, tables and line widths."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.harness import ROOT, for_each

FOLDERS: Final = ("bench", "common", "compose", "docs", "examples", "penstock", "scripts", "services", "tests")
PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))],
)
CODE: Final = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
NAMED: Final = re.compile(rf"(?<![\w/.<-])(?:{'|'.join(FOLDERS)})/[\w/.-]+\.(?:py|lua|sh|yaml|json|md)\b(?!\*)")


def links_have_targets(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def files_that_are_named_exist(page: Path) -> None:
    if page.name != "CHANGELOG.md":
        assert [name for name in NAMED.findall(page.read_text()) if not (ROOT / name).exists()] == []


def names_of_the_library_exist(page: Path) -> None:
    for name in re.findall(r"\bpenstock\.\w+\.[\w.]*\w", "" if page.name == "CHANGELOG.md" else prose(page)):
        module, _, last = name.replace(".", "/").rpartition("/")
        if not (ROOT / f"{module}/{last}.py").exists():
            assert re.search(rf"^(async )?(def|class) {last}\b", (ROOT / f"{module}.py").read_text(), re.MULTILINE), (
                name
            )


def tables_have_a_header_and_as_many_cells_in_each_row(page: Path) -> None:
    for table in re.findall(r"(?:^ *\|.*\n)+", prose(page), re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row)) for row in table.splitlines()]
        assert len(rows) > 1, table
        assert all(re.fullmatch(r" *:?-+:? *", cell) for cell in rows[1][1:-1]), table
        assert {len(row) for row in rows} == {len(rows[0])}, table


def lines_are_at_most_100_characters(page: Path) -> None:
    if page.name != "CHANGELOG.md":
        lines = prose(page).splitlines()
        assert [
            line for line in lines if len(line) > 100 and not line.lstrip().startswith("|") and line[:4].strip()
        ] == []


def a_composition_runs_on_a_named_server_and_what_is_typed_beside_it_stands_apart(page: Path) -> None:
    """Otherwise `up` starts an embedded server, which the next commands do not find, and goes on until ctrl-C."""
    for block in CODE.finditer(page.read_text()):
        lines = block[0].splitlines()[1:-1]
        for place, line in enumerate(lines):
            if re.search(r"penstock up [\w/]+$", line):
                assert any("REDIS=" in earlier for earlier in lines[:place]), line
                assert place == len(lines) - 1, lines[place + 1]


RULES: Final = (
    links_have_targets,
    files_that_are_named_exist,
    names_of_the_library_exist,
    tables_have_a_header_and_as_many_cells_in_each_row,
    lines_are_at_most_100_characters,
    a_composition_runs_on_a_named_server_and_what_is_typed_beside_it_stands_apart,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_page_keeps_the_rule(rule: Callable[[Path], None]) -> None:
    for_each(PAGES, rule)


def test_the_readme_has_at_most_200_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def prose(page: Path) -> str:
    """Return the page without its blocks of code."""
    return CODE.sub("", page.read_text())


def anchors(page: Path) -> Iterator[str]:
    """Yield the anchors that GitHub gives to the headings of ``page``."""
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
