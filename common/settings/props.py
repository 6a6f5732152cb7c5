"""Read props: a flat set of properties in a file of one of several formats, or in a hash of a server."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.settings.formats import (
    Lines,
    Reader,
    Unreadable,
    env_text,
    javascript_text,
    json5_text,
    json_text,
    toml_text,
    yaml_text,
)
from common.settings.redaction import plain
from penstock.base.errors import Problem, SettingsError
from penstock.base.secrets import NoSecret, read_at_most, resolve_reference

if TYPE_CHECKING:
    from common.settings.redis_hash import Hash

READERS: Final[dict[str, Reader]] = {
    ".js": javascript_text,
    ".cjs": javascript_text,
    ".mjs": javascript_text,
    ".json": json_text,
    ".json5": json5_text,
    ".toml": toml_text,
    ".yaml": yaml_text,
    ".yml": yaml_text,
    ".env": env_text,
}
LARGEST: Final = 1024 * 1024
"""Bytes; a longer file is no props file."""


@dataclass(frozen=True)
class Props:
    """The contents of a props file. In a ``.env`` file and in a hash every value is a text, as in the environment."""

    file: str | None = None
    values: dict[str, object] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    textual: bool = False


def place_of(text: str, environ: Mapping[str, str]) -> "Path | Hash":
    """Return what ``--props`` names: a file, or a hash on a server; either directly or by ``@FILE`` or ``env:NAME``.

    Raise ``SettingsError``.
    """
    try:
        named = resolve_reference(text, environ)
        if "://" not in named:
            return Path(named)
        from common.settings.redis_hash import Hash

        return Hash.at(named)
    except (NoSecret, Unreadable) as error:
        raise SettingsError([Problem(str(error), property="--props")]) from None


def read_props(place: "Path | Hash") -> Props:
    """Return the properties at ``place``. Raise only ``SettingsError``, with the line if it is known."""
    if isinstance(place, Path):
        return _of_file(place)
    try:
        return Props(str(place), dict(place.read()), textual=True)
    except Unreadable as error:
        raise SettingsError([Problem(str(error), str(place))]) from None


def _of_file(file: Path) -> Props:
    name = str(file)
    suffix = (file.suffix or file.name).lower()
    reader = READERS.get(suffix)
    if reader is None:
        raise SettingsError([Problem(f"expected a file that ends in one of {' '.join(READERS)}", name)])
    try:
        value, lines = reader(_text(file))
    except Unreadable as error:
        raise SettingsError([Problem(str(error), name, error.line)]) from None
    except (ValueError, RecursionError):  # a number of 5,000 digits, 5,000 brackets
        raise SettingsError([Problem("a value is too large or nested too deeply", name)]) from None
    if not isinstance(value, dict):
        raise SettingsError([Problem("expected properties with values, not a list or a single value", name)])
    problems = list(_repeated(name, lines))
    if not all(isinstance(key, str) for key in value):
        problems.append(Problem("expected names of properties that are text: write them in quotes", name))
    if problems:
        raise SettingsError(problems)
    return Props(name, value, dict(lines), textual=suffix == ".env")


def line_of(text: str, property: str) -> int | None:
    """Return the line (from 1) on which ``text``, in any format, sets ``property``; None if it does not."""
    for reader in dict.fromkeys(READERS.values()):
        try:
            _, lines = reader(text)
        except (Unreadable, ValueError, RecursionError):
            continue
        for name, line in lines:
            if name == property:
                return line
    return None


def _text(file: Path) -> str:
    try:
        found = read_at_most(str(file), LARGEST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a file name"
        raise Unreadable(f"cannot be read: {reason}") from None
    if len(found) > LARGEST:
        raise Unreadable(f"longer than {LARGEST} bytes: not a props file")
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8", found.count(b"\n", 0, error.start) + 1) from None


def _repeated(file: str, lines: Lines) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for name, line in lines:
        if name in first:
            yield Problem(f"given twice, first on line {first[name]}", file, line, plain(name))
        first.setdefault(name, line)
