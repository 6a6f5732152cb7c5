"""Rules for every Lua file: a header that is complete and true, and no forbidden code."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.core.script import PARTS, Script
from tests.support.harness import for_each
from tests.support.lua_files import (
    FILES,
    SCRIPTS,
    bare_names,
    body_of,
    declared_for,
    declared_in,
    header_of,
    parts_of,
    words_of,
)

TYPES = {"string", "list", "hash", "zset", "set", "stream"}
Rule = Callable[[Path], None]
OF_FILES = list[Rule]()
OF_SCRIPTS = list[Rule]()
OF_PARTS = list[Rule]()


def rule(of: list[Rule]) -> Callable[[Rule], Rule]:
    """Add a function, which raises for a file that breaks the rule."""

    def added(check: Rule) -> Rule:
        of.append(check)
        return check

    return added


def test_there_are_scripts() -> None:
    assert len(FILES) >= 10


@rule(OF_FILES)
def the_header_opens_with_what_the_script_does(file: Path) -> None:
    first, second, *_ = header_of(file)
    assert re.fullmatch(r"-- [A-Z].*[.;,:a-z]", first)
    assert second.startswith("--")


@rule(OF_SCRIPTS)
def the_header_says_what_is_returned_and_what_a_second_run_does(file: Path) -> None:
    header = " ".join(line.removeprefix("--").strip() for line in header_of(file))
    assert re.search(r"\bReturns \w.*\. Run twice\b[^.:]*: \w", header)


@rule(OF_FILES)
def every_key_and_argument_is_documented_and_used(file: Path) -> None:
    declared = declared_in(file)
    used_by_parts = {name for part in parts_of(file) for name in words_of(part, "USES")}
    assert file.parent == PARTS or any(kind == "KEYS" for kind, _, _ in declared_for(file))
    for kind, name, words in declared:
        bare = name.rstrip("?.")
        used = bare in used_by_parts or re.search(rf"\b{bare}\b", body_of(file))
        assert used, f"{bare} is never used"
        if kind == "KEYS":
            type_, *what = words.split()
            assert type_ in TYPES, f"{bare} is a {type_}"
            assert what, f"{bare} is not explained"
        else:
            assert len(words.split()) > 1, f"{bare} is not explained"


@rule(OF_FILES)
def names_are_declared_once_and_are_no_words_of_lua(file: Path) -> None:
    names = [name.rstrip("?.") for _, name, _ in declared_in(file)]
    assert len(set(names)) == len(names)
    assert not {"end", "local", "for", "in", "if", "not", "and", "or", "return", "redis", "call"} & set(names)


@rule(OF_SCRIPTS)
def a_script_names_what_it_takes_from_each_part(file: Path) -> None:
    for part in parts_of(file):
        given, taken = words_of(part, "GIVES"), words_of(file, f"WITH {part.stem}:")
        assert taken or not given, f"{part.stem} is not used"
        assert set(taken) == {name for name in given if re.search(rf"\b{name}\b", body_of(file))}, part.stem


@rule(OF_SCRIPTS)
def the_parts_of_a_script_give_each_name_once(file: Path) -> None:
    given = [name for part in parts_of(file) for name in words_of(part, "GIVES")]
    given += [name.rstrip("?.") for _, name, _ in declared_for(file)]
    assert len(set(given)) == len(given)


@rule(OF_SCRIPTS)
def a_script_has_what_its_parts_use(file: Path) -> None:
    known = bare_names(declared_in(file))
    for part in parts_of(file):
        known |= bare_names(declared_in(part))
        assert set(words_of(part, "USES")) <= known, part.stem
        known |= set(words_of(part, "GIVES"))


@rule(OF_PARTS)
def a_part_says_what_it_gives_and_uses(part: Path) -> None:
    code = body_of(part)
    assert words_of(part, "GIVES") or re.search(r"^if .* return .* end$", code, re.MULTILINE)
    for name in words_of(part, "GIVES"):
        assert re.search(rf"^local (function {name}\(|.*\b{name}\b)", code, re.MULTILINE), f"{name} is not defined"
    for name in words_of(part, "USES"):
        assert re.search(rf"\b{name}\b", code), f"{name} is not used"
    assert any(part in parts_of(file) for file in SCRIPTS), "no script uses it"


@rule(OF_FILES)
def no_script_uses_positions(file: Path) -> None:
    assert not re.search(r"\b(KEYS|ARGV)\b", body_of(file))


@rule(OF_FILES)
def no_script_looks_for_keys(file: Path) -> None:
    assert not re.search(r"""['"](KEYS|SCAN|RANDOMKEY|FLUSHALL|FLUSHDB|SELECT)['"]""", body_of(file), re.IGNORECASE)


@rule(OF_FILES)
def no_script_builds_a_key(file: Path) -> None:
    """Every command but TIME and PUBLISH uses a declared key, or a name from a declared list of names."""
    keys = {name.rstrip("?.") for kind, name, _ in declared_for(file) if kind == "KEYS"} | set(words_of(file, "USES"))
    singles = {name.rstrip("?.") for kind, name, _ in declared_for(file) if name.endswith("...")}
    loops = {single.rstrip("s") for single in singles}
    for names, places in re.findall(r"local ([\w, ]+) = (\w+\[[^\n]*)", body_of(file)):
        if all(place.partition("[")[0].strip() in singles for place in places.split(",")):
            loops |= set(names.split(", "))
    for command, first in re.findall(r"call\('((?:MEMORY|XINFO|XGROUP)', '\w+|\w+)'(?:,\s*([^,)]+))?", body_of(file)):
        used = set(re.findall(r"\w+", first)) - {"and", "or", "here", "moved", "0"}
        if first.removeprefix("unpack(") in keys & singles:
            used = {"key"}  # the whole list of keys
        assert "'" not in first, f"{command} on {first}"
        assert ".." not in first, f"{command} on {first}"
        assert command in ("TIME", "PUBLISH") or (used and used <= (keys - singles) | loops | {"key", "into"}), (
            f"{command} on {first}"
        )


@rule(OF_FILES)
def unpack_is_bounded(file: Path) -> None:
    """Lua's stack holds a few thousand values; with more, the script would fail halfway."""
    for arguments in re.findall(r"\bunpack\(([^()]*)\)", body_of(file)):
        assert arguments.count(",") == 2, f"unpack({arguments})"


async def test_the_server_compiles_each_with_and_without_its_optional_keys(redis: Redis) -> None:
    for file in FILES:
        script = Script.read(file)
        words = [word for _, word, _ in declared_for(file)]
        named: dict[str, Any] = {word.rstrip("?."): ["x"] if word.endswith("...") else "x" for word in words}
        least = {name: value for name, value in named.items() if f"{name}?" not in words}
        for given in (named, least):
            await redis.script_load(str(script.by_source(**given)[1]))


def words_behind(code: str, start: int) -> list[str]:
    """Return the arguments of a call, from behind its opening bracket, or a comma, to its end."""
    depth, quoted, found = 1, False, [""]
    for letter in code[start:]:
        quoted ^= letter == "'"
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if depth == 0:
            break
        if letter == "," and depth == 1 and not quoted:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def is_calculated(word: str, code: str, seen: frozenset[str] = frozenset()) -> bool:
    """Return True if an expression is a number that Lua has calculated, or a variable that gets one."""
    if (
        re.match(r"string\.format\(|'[^']*'$|\d+$", word)
        or " .. " in word
        or re.search(r" (and|or) string\.format\(", word)
    ):
        return False
    if re.fullmatch(r"[\w.]+", word):
        set_to = re.finditer(
            rf"^\s*(?:local )?((?:[\w.]+, )*{re.escape(word)}(?:, [\w.]+)*) = (.*)$", code, re.MULTILINE
        )
        pairs = [dict(zip(each[1].split(", "), words_behind(each[2], 0), strict=False)) for each in set_to]
        return word not in seen and any(is_calculated(pair.get(word, ""), code, seen | {word}) for pair in pairs)
    flat = word
    while flat != (flat := re.sub(r"\([^()]*\)|\[[^][]*\]|\{[^{}]*\}|'[^']*'", "", flat)):
        pass
    return bool(re.search(r"[-+*/^#]|\bmath\.|\btonumber$", flat))


def raw_numbers(code: str) -> list[str]:
    """Return what commands get as a time to live, or as the value of a field, that Lua writes as 3e+8 on Redis 7.2."""
    found = []
    for call in re.finditer(r"\bp?call\('(\w+)',", code):
        words = words_behind(code, call.end())
        match call[1]:
            case "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT":
                used = words[1:2]
            case "SET":
                used = [words[1], *(value for name, value in pairwise(words) if name in ("'EX'", "'PX'"))]
            case "HSET" | "HSETNX":
                used = words[2::2]
            case "HINCRBY":
                used = [word for word in words[2:3] if re.search(r"\bhere\b", word)]  # all of a list, not one batch
            case _:
                used = []
        found += [f"{call[1]} {word}" for word in used if is_calculated(word, code)]
    return found


@rule(OF_FILES)
def numbers_in_records_and_times_to_live_are_formatted(file: Path) -> None:
    assert raw_numbers(body_of(file)) == []


def test_raw_numbers_are_found() -> None:
    code = """
local life, left = math.ceil(seconds), call('PTTL', key)
expire = tonumber(expire)
call('EXPIRE', key, expire)
call('PEXPIRE', key, life)
call('SET', key, value, 'PX', left * 2)
call('HSET', key, 'a', last + 1, 'b', string.format('%d', last + 1), 'c', words[2 * place])
call('EXPIRE', key, string.format('%.0f', life))
call('HINCRBY', key, 'count', -here)
call('HINCRBY', key, 'count', count - 1)
"""
    assert raw_numbers(code) == ["EXPIRE expire", "PEXPIRE life", "SET left * 2", "HSET last + 1", "HINCRBY -here"]


RULES = [
    pytest.param(check, files, id=check.__name__)
    for rules, files in ((OF_FILES, FILES), (OF_SCRIPTS, SCRIPTS), (OF_PARTS, sorted(PARTS.glob("*.lua"))))
    for check in rules
]


@pytest.mark.parametrize(("check", "files"), RULES)
def test_each_file_keeps_the_rule(check: Rule, files: list[Path]) -> None:
    for_each(files, check)
