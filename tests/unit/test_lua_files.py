"""What every Lua file of the project promises in its header, and what none may do."""

import re
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.script import PART, PARTS, Script
from tests.harness import ROOT

FILES = sorted(path for house in ("penstock", "common", "services") for path in (ROOT / house).rglob("*.lua"))
TYPES = {"string", "list", "hash", "zset", "set", "stream"}
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))


def header_of(file: Path) -> list[str]:
    lines = file.read_text().splitlines()
    return lines[: next(place for place, line in enumerate(lines) if not line.startswith("--"))]


def body_of(file: Path) -> str:
    """Its code, without comments."""
    lines = file.read_text().splitlines()[len(header_of(file)) :]
    return "\n".join(re.sub(r"--.*", "", line) for line in lines)


def declared_in(file: Path) -> list[tuple[str, str, str]]:
    """Kind, name with its mark, and the words about it."""
    found = (re.match(r"-- (KEYS|ARGV) (\S+)\s+(.*)", line) for line in header_of(file))
    return [(each[1], each[2], each[3]) for each in found if each]


def declared_for(file: Path) -> list[tuple[str, str, str]]:
    """The same with that of its parts."""
    parts = [PARTS / f"{name}.lua" for name in PART.findall(file.read_text())]
    return [each for path in (*parts, file) for each in declared_in(path)]


def test_there_are_scripts() -> None:
    assert len(FILES) >= 10


@each_file
def test_the_header_opens_with_what_the_script_does(file: Path) -> None:
    first, second, *_ = header_of(file)
    assert re.fullmatch(r"-- [A-Z].*[.;,:a-z]", first)
    assert second.startswith("--")


@each_file
def test_the_header_says_what_is_returned_and_what_a_second_run_does(file: Path) -> None:
    header = " ".join(line.removeprefix("--").strip() for line in header_of(file))
    assert re.search(r"\bReturns \w.*\. Run twice\b[^.:]*: \w", header)


@each_file
def test_every_key_and_argument_is_documented_and_used(file: Path) -> None:
    declared = declared_in(file)
    assert file.parent == PARTS or any(kind == "KEYS" for kind, _, _ in declared_for(file))
    for kind, name, words in declared:
        bare = name.rstrip("?.")
        assert re.search(rf"\b{bare}\b", body_of(file)), f"{bare} is never used"
        if kind == "KEYS":
            type_, *what = words.split()
            assert type_ in TYPES, f"{bare} is a {type_}"
            assert what, f"{bare} is not explained"
        else:
            assert len(words.split()) > 1, f"{bare} is not explained"


@each_file
def test_names_are_declared_once_and_are_no_words_of_lua(file: Path) -> None:
    names = [name.rstrip("?.") for _, name, _ in declared_in(file)]
    assert len(set(names)) == len(names)
    assert not {"end", "local", "for", "in", "if", "not", "and", "or", "return", "redis", "call"} & set(names)


@each_file
def test_no_body_counts_positions(file: Path) -> None:
    assert not re.search(r"\b(KEYS|ARGV)\b", body_of(file))


@each_file
def test_no_script_looks_for_keys(file: Path) -> None:
    assert not re.search(r"""['"](KEYS|SCAN|RANDOMKEY|FLUSHALL|FLUSHDB|SELECT)['"]""", body_of(file), re.IGNORECASE)


@each_file
def test_no_script_makes_up_a_key(file: Path) -> None:
    """Every command but TIME and PUBLISH works on a declared key, or on a name taken from a declared list of them."""
    keys = {name.rstrip("?.") for kind, name, _ in declared_for(file) if kind == "KEYS"}
    singles = {name.rstrip("?.") for kind, name, _ in declared_for(file) if name.endswith("...")}
    loops = {single.rstrip("s") for single in singles}
    for names, places in re.findall(r"local ([\w, ]+) = (\w+\[[^\n]*)", body_of(file)):
        if all(place.partition("[")[0].strip() in singles for place in places.split(",")):
            loops |= set(names.split(", "))
    for command, first in re.findall(r"call\('(MEMORY', 'USAGE|\w+)'(?:,\s*([^,)]+))?", body_of(file)):
        used = set(re.findall(r"\w+", first)) - {"and", "or", "here", "moved", "0"}
        if first.removeprefix("unpack(") in keys & singles:
            used = {"key"}  # all of them
        assert "'" not in first, f"{command} on {first}"
        assert ".." not in first, f"{command} on {first}"
        assert command in ("TIME", "PUBLISH") or (used and used <= (keys - singles) | loops | {"key", "into"}), (
            f"{command} on {first}"
        )


@each_file
def test_unpack_is_bounded(file: Path) -> None:
    """Lua's stack takes some thousand values; past that the script would fail in the middle of its work."""
    for arguments in re.findall(r"\bunpack\(([^()]*)\)", body_of(file)):
        assert arguments.count(",") == 2, f"unpack({arguments})"


@each_file
async def test_the_server_compiles_it_with_and_without_its_optional_keys(file: Path, redis: Redis) -> None:
    script = Script.read(file)
    named: dict[str, Any] = {
        name.rstrip("?."): ["x"] if name.endswith("...") else "x" for _, name, _ in declared_for(file)
    }
    least = {
        name: value for name, value in named.items() if f"{name}?" not in [each for _, each, _ in declared_for(file)]
    }
    for given in (named, least):
        await redis.script_load(str(script.by_source(**given)[1]))
