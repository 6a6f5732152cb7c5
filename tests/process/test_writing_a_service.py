"""docs/writing-a-service.md: its files equal those of the example, and its commands print what it shows."""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.ports import free_port
from tests.support.harness import ROOT
from tests.support.shell import Shell, answer, blocks, examples

PAGE = (ROOT / "docs" / "writing-a-service.md").read_text()
EXAMPLE = ROOT / "examples" / "router"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example's entry points from its pyproject.toml, as pip would."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, EXAMPLE))))


@pytest.fixture
def shell(installed: None) -> Iterator[Shell]:
    session = Shell(free_port())
    yield session
    session.close()


def test_the_files_on_the_page_are_those_of_the_example() -> None:
    shown = re.findall(r"^```(?:python|toml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    files = [*EXAMPLE.glob("router/*.py"), EXAMPLE / "pyproject.toml"]
    texts = [file.read_text() for file in files if file.read_text()]
    for text in texts:
        assert any(block in text for block in shown), text
    written = sum(len(file.read_text().splitlines()) for file in EXAMPLE.glob("router/*.py"))
    assert written <= 40
    assert f"{written} lines of Python" in PAGE


def test_every_block_works_as_printed(shell: Shell) -> None:
    for kind, block in blocks(PAGE):
        if kind == "shell":
            printed, status = shell.run(block)
            assert (status in (0, 143), "Traceback" in printed) == (True, False), f"{block}\n{printed}"
            continue
        for command, expected in examples(block):
            assert answer(shell, command, expected) == expected, command


def test_no_fault_at_any_point_loses_a_message(shell: Shell) -> None:
    printed, status = shell.run(".venv/bin/penstock chaos examples/router/")
    assert status == 0, printed
