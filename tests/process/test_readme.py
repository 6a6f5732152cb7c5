"""Run every shell block of the tutorials and compare its output with the printed one."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from penstock.base.ports import free_port
from tests.support.harness import ROOT
from tests.support.shell import Shell, answer, blocks, examples

RECURSES: Final = re.compile(r"^make test$", re.MULTILINE)


@pytest.fixture
def shell() -> Iterator[Shell]:
    session = Shell(free_port(), free_port())
    yield session
    session.close()


PAGES: Final = ("tour", "tracking", "lists", "bus", "jobs", "web", "queue", "outbox")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in PAGES)])
def test_every_block_works_as_printed(page: str, shell: Shell) -> None:
    found = blocks((ROOT / page).read_text())
    assert [kind for kind, _ in found].count("console") >= 3
    for kind, block in found:
        if kind == "shell":
            assert not RECURSES.search(block), "a test run inside a test run would never end"
            printed, status = shell.run(block)
            assert (status, "Traceback" in printed) == (0, False), f"{block}\n{printed}"
            continue
        for command, expected in examples(block):
            assert answer(shell, command, shell.ours(expected)) == shell.ours(expected), command


def test_the_checked_answers_can_be_wrong(shell: Shell) -> None:
    assert answer(shell, "echo two", "one\n") == "two\n"


def test_the_pages_name_every_setting_that_matters() -> None:
    page = (ROOT / "services" / "mpush" / "README.md").read_text()
    printed = subprocess.run(
        [sys.executable, "-m", "services.mpush", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in re.findall(r"^\| `(\w+)`", page.partition("## Settings")[2].partition("## Keys")[0], re.MULTILINE):
        assert f"\n  {name}" in printed, name
