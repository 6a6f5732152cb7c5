"""luacheck on the Lua scripts as the loader composes them, and on each part by itself."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from penstock.core.script import PARTS, Script
from tests.support.harness import ROOT
from tests.support.lua_files import FILES, SCRIPTS, bare_names, declared_for, declared_in, words_of

pytestmark = pytest.mark.skipif(not shutil.which("luacheck"), reason="luacheck is not installed (Debian: lua-check)")
FIRST_LINE: Final = re.compile(r":1:.*\(W(211|231|431)\)")
"""Findings to ignore: line 1 has the loader's locals and parts; a script may leave some unused, or shadow them."""


def composed(file: Path) -> str:
    """Return the script as it runs if all its keys are given."""
    named = {name.rstrip("?."): ["x"] if name.endswith("...") else "x" for _, name, _ in declared_for(file)}
    return str(Script.read(file).by_source(**named)[1])


def completed(part: Path) -> str:
    """Return the code of the part: with definitions of all that it uses, and returning all that it gives."""
    locals_ = sorted(bare_names(declared_in(part)) | set(words_of(part, "USES")))
    prelude = f"local {', '.join(locals_)} = unpack(ARGV) " if locals_ else ""
    return f"{prelude}{part.read_text()}return {', '.join(words_of(part, 'GIVES'))}\n"


def problems(texts: dict[Path, str], directory: Path) -> list[str]:
    for file, text in texts.items():
        (directory / str(file.relative_to(ROOT)).replace("/", ":")).write_text(text)
    command = ["luacheck", "--config", str(ROOT / ".luacheckrc"), "--formatter", "plain", "--codes", "."]
    found = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert not found.stderr
    return [line.removeprefix("./") for line in found.stdout.splitlines()]


def test_scripts_are_clean_as_they_run(tmp_path: Path) -> None:
    found = problems({file: composed(file) for file in SCRIPTS}, tmp_path)
    assert [line for line in found if not FIRST_LINE.search(line)] == []


def test_parts_are_clean(tmp_path: Path) -> None:
    assert problems({file: completed(file) for file in FILES if file.parent == PARTS}, tmp_path) == []


def test_luacheck_finds_unused_shadowing_and_unknown_names(tmp_path: Path) -> None:
    text = "local one = 1\nlocal call = redis.call\nlocal function twice(call) return nobody end\nreturn twice(call)\n"
    found = problems({ROOT / "wrong.lua": text}, tmp_path)
    assert {re.sub(r".*\((.*)\).*", r"\1", line) for line in found} == {"W113", "W211", "W212", "W431"}
