"""Run each tutorial as its reader does: in an environment that has what the page installs, and nothing else."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from penstock.base.ports import free_port
from tests.support.harness import ROOT
from tests.support.shell import Shell, answer, blocks, examples

PAGES: Final = sorted(set(re.findall(r"\]\((\S+\.md)\)", (ROOT / "docs" / "index.md").read_text().split("\n## ")[1])))
README: Final = (ROOT / "README.md").read_text()
SERVICE: Final = "writing-a-service.md"
EXAMPLE: Final = ROOT / "examples" / "router"
RECURSES: Final = re.compile(r"^make test$", re.MULTILINE)
NO_INDEX: Final = "connection broken by"
"""What pip prints if it cannot reach its index."""


def run(*words: str | Path, cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode and NO_INDEX in done.stderr:
        pytest.skip("pip reaches no package index")
    assert not done.returncode, done.stderr


def environment() -> dict[str, str]:
    """Return the environment of a reader who has not activated the environment that the tests run in."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    return next(folder.glob("penstock-*.whl"))


class Reader:
    """A clone without the packages of the wheel, so that each module comes from there, and a shell in it."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self._wheel = folder, wheel
        for name in ("compose", "examples"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        (install,) = (block for kind, block in blocks(README) if "-m venv" in block)
        run("bash", "-c", self._from_wheel(install).replace("python3", shlex.quote(sys.executable)), cwd=folder)
        self.shell = Shell(free_port(), free_port(), cwd=folder, environment=environment())

    def _from_wheel(self, block: str) -> str:
        """Have pip install from the wheel what the clone would be installed as; it is the same, and built once."""
        return re.sub(r"(pip install .*)'\.\[", rf"\1'{self._wheel}[", block)

    def run(self, kind: str, block: str) -> None:
        if kind == "console":
            for command, expected in examples(block):
                assert answer(self.shell, command, self.shell.ours(expected)) == self.shell.ours(expected), command
        elif kind == "python":
            self._import_of(block)
        elif kind in ("shell", "sh") and "-m venv" not in block:
            assert not RECURSES.search(block), "a test run inside a test run would never end"
            printed, status = self.shell.run(self._from_wheel(block))
            assert (status in (0, 143), "Traceback" in printed) == (True, False), f"{block}\n{printed}"

    def _import_of(self, block: str) -> None:
        """Compile an excerpt, and import what it imports."""
        compile(block, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        imports = "\n".join(re.findall(r"^(?:from|import) .*$", block, re.MULTILINE))
        run(self.folder / ".venv" / "bin" / "python", "-c", imports, cwd=self.folder)


@pytest.fixture
def reader(tmp_path: Path, wheel: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path, wheel)
    yield reader
    reader.shell.close()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_works_as_printed(page: str, reader: Reader) -> None:
    found = blocks((ROOT / "docs" / page).read_text())
    assert [kind for kind, _ in found].count("console") >= 3
    for kind, block in found:
        if (page, kind) != (SERVICE, "python"):  # these are files of the example
            reader.run(kind, block)


def test_the_checked_answers_can_be_wrong() -> None:
    shell = Shell()
    try:
        assert answer(shell, "echo two", "one\n") == "two\n"
    finally:
        shell.close()


def test_the_files_on_the_page_are_those_of_the_example() -> None:
    page = (ROOT / "docs" / SERVICE).read_text()
    shown = [block for kind, block in blocks(page) if kind in ("python", "toml")]
    files = [*EXAMPLE.glob("router/*.py"), EXAMPLE / "pyproject.toml"]
    texts = [file.read_text() for file in files if file.read_text()]
    for text in texts:
        assert any(block in text for block in shown), text
    written = sum(len(file.read_text().splitlines()) for file in EXAMPLE.glob("router/*.py"))
    assert written <= 40
    assert f"{written} lines of Python" in page


def test_the_pages_name_every_setting_that_matters() -> None:
    page = (ROOT / "services" / "mpush" / "README.md").read_text()
    printed = subprocess.run(
        [sys.executable, "-m", "services.mpush", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in re.findall(r"^\| `(\w+)`", page.partition("## Settings")[2].partition("## Keys")[0], re.MULTILINE):
        assert f"\n  {name}" in printed, name
