"""The formats of a props file: each reader parses a text, and finds the line of every property.

A reader imports its parser when it is called, so that a service loads only the parser that it needs.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from typing import Any, Final, TypeVar

Lines = list[tuple[str, int]]
"""Properties with their lines (from 1), in the order of the text; one that is set twice occurs twice.

In YAML also the items of a list of objects, as ``rules[0]``.
"""

Reader = Callable[[str], tuple[object, Lines]]

SPACE: Final = r"(?>[\s\ufeff]|//[^\n\r\u2028\u2029]*|/\*(?s:.*?)\*/)*+"
HEAD: Final = re.compile(
    rf"{SPACE}(?:(['\"])use strict\1\s*+;?{SPACE})?(?:module\.exports\s*+=|export\s+default\b){SPACE}(?=\{{)"
)
TAIL: Final = re.compile(rf"{SPACE};?{SPACE}")
JSON_TOKEN: Final = re.compile(
    r"""//[^\n\r\u2028\u2029]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[][(){},:]|[^][\s(){},:"'/]+""", re.DOTALL
)
TOML_TOKEN: Final = re.compile(
    r"""\#[^\n]*|"{3}(?:\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[][{},=]|[^][\s{},="'\#]+""",
    re.DOTALL,
)

TOML_KEYS: Final = re.compile(r"[^\n=,{]+")
"""Whatever may be a key, or a word of a value."""
MAX_PARTS: Final = 500
"""Maximum number of parts of a dotted key: the time to read one grows with their square."""
MAX_PROPERTIES: Final = 1_000
"""Maximum number of properties in a props file."""
Properties = TypeVar("Properties")


class Unreadable(Exception):
    """The text does not have the format of its name. The message quotes none of it: it may contain a password."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def json_text(text: str) -> tuple[object, Lines]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.lineno) from None
    return _limited(value), _json_lines(text)


def json5_text(text: str) -> tuple[object, Lines]:
    import pyjson5

    try:
        value = pyjson5.decode(text)
    except pyjson5.Json5DecoderException as error:
        place = re.search(r" (?:starting )?near (\d+)", str(error.args[0]))
        words = re.sub(r" (?:starting )?near \d+", "", str(error.args[0]))
        words = re.sub(r"b'(\w+)'", r"\1", words).replace("JSON5Value", "a value")
        words = re.sub(r"U\+([0-9a-fA-F]+)", lambda code: ascii(chr(int(code[1], 16))), words)
        line = _line(text, max(0, int(place[1]) - 1)) if place else None
        raise Unreadable(f"not JSON5: {words[:1].lower()}{words[1:]}", line) from None
    return _limited(value), _json_lines(text)


def javascript_text(text: str) -> tuple[object, Lines]:
    """Parse the one literal of a JavaScript file as JSON5; execute nothing."""
    head = HEAD.match(text)
    if head is None:
        space = re.match(SPACE, text)
        raise Unreadable(
            "a JavaScript props file holds one literal and nothing else, module.exports = {...} or "
            "export default {...}: it is read, never executed",
            _line(text, space.end() if space else 0),
        )
    end = _end_of_literal(text, head.end())
    rest = TAIL.match(text, end)
    if rest and rest.end() != len(text):
        raise Unreadable("nothing may follow the literal: the file is read, never executed", _line(text, rest.end()))
    blank = re.sub(r"[^\n\r]", " ", head[0])
    try:
        return json5_text(blank + text[head.end() : end])
    except Unreadable as error:
        words = str(error).removeprefix("not JSON5: ")
        raise Unreadable(f"not a literal (the file is read, never executed): {words}", error.line) from None


def yaml_text(text: str) -> tuple[object, Lines]:
    import yaml

    from penstock.base.yaml_documents import BoundedLoader, describe_yaml_error

    try:
        loader = BoundedLoader(text)
        node = loader.get_single_node()
        pairs = _limited(node.value) if isinstance(node, yaml.MappingNode) else []
        lines = [(str(name.value), name.start_mark.line + 1) for name, _ in pairs if name.value != "<<"]
        for _, value in pairs:
            _refuse_other_numbers(value)
        for name, listed in pairs:
            if isinstance(listed, yaml.SequenceNode):
                items = enumerate(listed.value) if isinstance(next(iter(listed.value), None), yaml.MappingNode) else ()
                lines += [(f"{name.value}[{place}]", item.start_mark.line + 1) for place, item in items]
        return loader.construct_document(node) if node else {}, lines
    except yaml.MarkedYAMLError as error:
        words, line = describe_yaml_error(error)
        raise Unreadable(f"not YAML: {words}", line) from None
    except yaml.reader.ReaderError as error:
        raise Unreadable("not YAML: a control character", _line(text, error.position)) from None
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):  # PyYAML on 2001-99-99, `!!bool x`
        raise Unreadable("not YAML: a value is not what its tag or its form says") from None


def _refuse_other_numbers(node: Any) -> None:
    """Raise ``Unreadable`` for a number, or one in a list, that YAML reads as another: 0123 as 83, 12:30 as 750."""
    for each in node.value if isinstance(node.value, list) else [node]:
        if str(getattr(each, "tag", "")).endswith((":int", ":float")) and re.match(r"[-+]?0[0-9_]|.*:", each.value):
            words = "YAML reads a number with a colon, or with 0 before it, as another one: write it in quotes"
            raise Unreadable(words, each.start_mark.line + 1)


def toml_text(text: str) -> tuple[object, Lines]:
    import tomllib

    if deep := next((found for found in TOML_KEYS.finditer(text) if found[0].count(".") >= MAX_PARTS), None):
        raise Unreadable("nested too deeply", _line(text, deep.start()))
    try:
        value = _limited(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        words = _discreet(re.sub(r" \(at .*\)$", "", str(error)))
        place = re.search(r"\(at line (\d+)", str(error))
        line = int(place[1]) if place else _line(text, len(text.rstrip()))
        raise Unreadable(f"not TOML: {words[:1].lower()}{words[1:]}", line) from None
    found: dict[str, int] = {}
    for token, line in _names(TOML_TOKEN, text, separator="=", level=0):
        found.setdefault(next(iter(tomllib.loads(f"{token}=0")), token), line)
    return value, list(found.items())


def env_text(text: str) -> tuple[object, Lines]:
    from dotenv.parser import parse_stream

    values: dict[str, str] = {}
    lines: Lines = []
    for found in parse_stream(StringIO(text)):
        written = found.original.string
        line = found.original.line + _line(written, len(written) - len(written.lstrip())) - 1
        if found.error or (found.key is not None and found.value is None):
            raise Unreadable("expected NAME=value", line)
        if found.key is not None and found.value is not None:
            values[found.key] = found.value
            _limited(lines).append((found.key, line))
    return values, lines


def _limited(value: Properties) -> Properties:
    """Return ``value``. Raise ``Unreadable`` if it has more properties than any service."""
    if isinstance(value, dict | list) and len(value) > MAX_PROPERTIES:
        raise Unreadable(f"more than {MAX_PROPERTIES:,} properties: not a props file")
    return value


def _json_lines(text: str) -> Lines:
    return [(_json_name(token), line) for token, line in _names(JSON_TOKEN, text, separator=":", level=1)]


def _json_name(token: str) -> str:
    if token[0] not in "'\"" and "\\" not in token:
        return token
    with suppress(ValueError):
        return str(json.loads(token))
    import pyjson5

    return str(next(iter(pyjson5.decode(f"{{{token}:0}}"))))


def _names(token: re.Pattern[str], text: str, *, separator: str, level: int) -> Iterator[tuple[str, int]]:
    """Yield what precedes ``separator`` inside ``level`` brackets, with its line. ``text`` must be valid."""
    depth, before = 0, None
    for found in token.finditer(text):
        mark = found[0]
        if mark in ("{", "[", "("):
            depth += 1
        elif mark in ("}", "]", ")"):
            depth -= 1
        elif mark == separator and depth == level and before:
            yield before[0], _line(text, before.start())
        if not mark.startswith(("//", "/*", "#")):
            before = found


def _end_of_literal(text: str, start: int) -> int:
    depth = 0
    for found in JSON_TOKEN.finditer(text, start):
        depth += {"{": 1, "[": 1, "(": 1, "}": -1, "]": -1, ")": -1}.get(found[0], 0)
        if depth == 0 and found[0] in ("}", "]", ")"):
            return found.end()
    return len(text)


def _discreet(message: str) -> str:
    """Return a parser's message without its quotes from the text, except single characters."""
    return re.sub(r"""(?s)\s*\(?(['"])(?!<).{2,}\1,?\)?""", "", message)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
