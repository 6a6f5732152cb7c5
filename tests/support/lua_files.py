"""The Lua files of the repository, and what their headers declare."""

import re
from pathlib import Path

from penstock.core.script import PART, PARTS
from tests.support.harness import ROOT

FILES = sorted(path for house in ("penstock", "common", "services") for path in (ROOT / house).rglob("*.lua"))
SCRIPTS = [file for file in FILES if file.parent != PARTS]


def header_of(file: Path) -> list[str]:
    lines = file.read_text().splitlines()
    return lines[: next(place for place, line in enumerate(lines) if not line.startswith("--"))]


def body_of(file: Path) -> str:
    """Return the code without comments."""
    lines = file.read_text().splitlines()[len(header_of(file)) :]
    return "\n".join(re.sub(r"--.*", "", line) for line in lines)


def declared_in(file: Path) -> list[tuple[str, str, str]]:
    """Return kind, name with its mark, and description of each key and argument."""
    found = (re.match(r"-- (KEYS|ARGV) (\S+)\s+(.*)", line) for line in header_of(file))
    return [(each[1], each[2], each[3]) for each in found if each]


def parts_of(file: Path) -> list[Path]:
    return [PARTS / f"{name}.lua" for name in PART.findall(file.read_text())]


def declared_for(file: Path) -> list[tuple[str, str, str]]:
    """Return what the header and those of its parts declare."""
    return [each for path in (*parts_of(file), file) for each in declared_in(path)]


def words_of(file: Path, label: str) -> list[str]:
    """Return the words of the header line ``label``, for example GIVES."""
    start = f"-- {label} "
    return [word for line in header_of(file) if line.startswith(start) for word in line.removeprefix(start).split()]


def bare_names(declared: list[tuple[str, str, str]]) -> set[str]:
    return {name.rstrip("?.") for _, name, _ in declared}
