"""docs/tracking.md does what it says: every block runs in turn, every printed answer is the one that comes."""

from tests.harness import ROOT
from tests.process.test_readme import Shell, answer, blocks, examples, shell

__all__ = ["shell"]


def test_every_block_works_as_printed(shell: Shell) -> None:
    found = blocks((ROOT / "docs" / "tracking.md").read_text())
    assert [kind for kind, _ in found].count("console") >= 4
    for kind, block in found:
        if kind == "shell":
            printed, status = shell.run(block)
            assert (status, "Traceback" in printed) == (0, False), f"{block}\n{printed}"
            continue
        for command, expected in examples(block):
            assert answer(shell, command, expected) == expected, command
