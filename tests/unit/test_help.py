"""``-h`` of every program that the documents, the Makefile or an entry point name."""

import re
import subprocess
import sys

import pytest

from tests.support.harness import ROOT

NAMED = re.compile(r"python -m ((?:bench|common|compose|penstock|services|tests)(?:\.\w+)*)(?![.\w])")
FILES = [ROOT / "Makefile", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("[cs]*/*/README.md")]
WORKERS = ["compose.queue.worker", "compose.tracked.worker"]
"""Programs of Procfiles that take arguments."""
MODULES = {
    *(module for file in FILES for module in NAMED.findall(file.read_text())),
    *(".".join(file.parent.relative_to(ROOT).parts) for file in ROOT.glob("[bpst]*/**/__main__.py")),
    *WORKERS,
}
FAST = {"bench", "penstock", "penstock.spark.classes", "compose.queue.worker"}
"""A process each: the slow tests ask all others."""


@pytest.mark.parametrize(
    "program",
    [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in [*sorted(MODULES), "bench peers"]],
)
def test_h_shows_the_usage_and_begins_nothing(program: str) -> None:
    words = [sys.executable, "-m", *program.split(), "-h"]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.match(r"\s*usage: ", ran.stdout, re.IGNORECASE)
