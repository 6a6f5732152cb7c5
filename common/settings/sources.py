"""Collect what the operator set, and where: the environment over the props file, by the names of one service."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from pydantic.fields import FieldInfo

from common.settings.fields import IN_FILE, is_list
from common.settings.props import Props, read_props
from common.settings.redaction import nearest, plain, shown
from penstock.base.errors import Problem, SettingsError
from penstock.base.secrets import FILE_SUFFIX, NoSecret, secret_in_file
from penstock.base.shape import property_of

if TYPE_CHECKING:
    from common.settings.redis_hash import Hash

FALLBACKS: Final = {"REDIS": "redis", "loggerLevel": "logger_level"}
"""Variables without the prefix of a service."""

FOREIGN: Final = re.compile(
    r"(?:.+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
"""What Kubernetes and Docker's links add, after the prefix, for Services called like this one, or this one and more."""
FOREIGN_URL: Final = re.compile(r"(tcp|udp|sctp)://")
"""What their variables that end in PORT begin with: one of those may have the name of a setting."""
QUOTED: Final = re.compile(r"""(?s)^\s*(["']).*\1\s*$|^(?![\[{])(?:.*,)?\s*(["'])[^,]*\2\s*(?:,|$)""")
"""A text in quotes, or with commas and an item in quotes."""


@dataclass(frozen=True)
class Given:
    """A value and where it was set; ``name`` is how the name was written there."""

    value: object
    name: str
    file: str | None = None
    line: int | None = None
    source: str = "environment"
    """What set it if no file did."""
    items: tuple[int, ...] = ()
    """The lines of its objects, if the value is a list of them and their lines are known."""

    @classmethod
    def of(cls, props: Props, name: str) -> Self:
        """Return the value of property ``name`` in a file."""
        value, lines = props.values[name], list[int]()
        if isinstance(value, list):
            lines = [props.lines[item] for place in range(len(value)) if (item := f"{name}[{place}]") in props.lines]
        return cls(value, name, props.file, props.lines.get(name), items=tuple(lines))

    def problem(self, message: str) -> Problem:
        return Problem(message, self.file, self.line, plain(self.name))

    def line_of(self, place: int) -> int | None:
        """Return the line of the item at ``place`` (from 0), or of the whole if that is not known."""
        return self.items[place] if place < len(self.items) else self.line

    def item_problem(self, place: int, message: str) -> Problem:
        return Problem(f"item {place + 1}: {message}", self.file, self.line_of(place), plain(self.name))

    @property
    def origin(self) -> str:
        """Return where it was set, for a table: ``environment MPUSH_REDIS``, ``mpush.yaml:3``."""
        return ":".join(
            str(part) for part in (self.file or f"{self.source} {self.name}", self.line) if part is not None
        )


@dataclass
class Found:
    """All values that were set, by field, and the problems met while reading them."""

    given: dict[str, Given] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    file: str | None = None
    in_file: dict[str, Given] = field(default_factory=dict)
    """The values of the props file, by field, including those that the environment overrides."""
    unread: set[str] = field(default_factory=set)
    """Fields whose file could not be read."""
    readable: bool = True
    """False if the props file could not be read: then nobody knows what is missing."""

    def add(self, name: str, one: Given) -> None:
        """Add a value; two names of one field may be set together only if they agree."""
        other = self.given.setdefault(name, one)
        if other is not one and other.value != one.value:
            self.problems.append(one.problem(f"contradicts {other.name}, another name of the same setting"))


class Names:
    """The names of a service's fields: ``popTimeout`` in files, ``MPUSH_POP_TIMEOUT`` in the environment."""

    def __init__(self, service: str, fields: Mapping[str, FieldInfo], aliases: Mapping[str, str]) -> None:
        self._service, self._fields = service, fields
        self.prefix = f"{service.upper().replace('-', '_')}_"
        written = {name: name for name in fields} | dict(aliases)
        self._properties = {property_of(name): field for name, field in written.items()}
        self._variables = {self.variable_of(name): field for name, field in written.items()}

    def variable_of(self, name: str) -> str:
        return self.prefix + name.rstrip("_").upper()

    def variables_of(self, field: str) -> list[str]:
        """Return all names that set ``field`` in the environment, the strongest first."""
        return [name for name, owner in (*self._variables.items(), *FALLBACKS.items()) if owner == field]

    def properties_of(self, field: str) -> list[str]:
        return [name for name, owner in self._properties.items() if owner == field]

    def read(self, props_file: "Path | Hash | None", environ: Mapping[str, str]) -> Found:
        """Return the values of the environment over those of the props file."""
        try:
            found = self.in_file(read_props(props_file) if props_file else Props())
        except SettingsError as error:
            found = Found(problems=error.problems, readable=False)
        stronger = self.in_environment(environ)
        given = found.given | stronger.given
        if environ.get("NODE_ENV") == "development" and "logger_level" in self._fields:
            given.setdefault("logger_level", Given("debug", "NODE_ENV"))
        file = str(props_file) if props_file else None
        problems = found.problems + stronger.problems
        return Found(given, problems, file, found.given, found.unread | stronger.unread, found.readable)

    def in_file(self, props: Props) -> Found:
        found = Found()
        for name in props.values:
            one = Given.of(props, name)
            if field := self._properties.get(name):
                self._add(field, one, found, textual=props.textual)
            elif name == "service":
                if one.value != self._service:
                    words = f"this file is for {shown(one.value)}, and {self._service} reads it"
                    found.problems.append(one.problem(words))
            else:
                found.problems.append(one.problem(f"unknown property{self._hint(name)}"))
        return found

    def in_environment(self, environ: Mapping[str, str]) -> Found:
        """Return the values of the environment; an empty variable counts as absent, as compose files pass it."""
        found = Found()
        for variable in self._prefixed(environ):
            one = Given(environ[variable], variable)
            if field := self._variables.get(variable):
                self._add_variable(field, one, found)
            elif field := self._variables.get(variable.removesuffix(FILE_SUFFIX)):
                self._from_file(field, variable, environ, found)
            else:
                found.problems.append(one.problem(f"unknown variable{_hint(nearest(variable, self._variables))}"))
        for variable, field in FALLBACKS.items():
            if field not in self._fields or field in found.given:
                continue
            if environ.get(variable):
                self._add_variable(field, Given(environ[variable], variable), found)
            if environ.get(variable + FILE_SUFFIX):
                self._from_file(field, variable + FILE_SUFFIX, environ, found)
        return found

    def _add_variable(self, field: str, one: Given, found: Found) -> None:
        if QUOTED.search(str(one.value)):
            words = "it contains its quotes, as docker's --env-file hands them over: write it without them"
            found.problems.append(one.problem(words))
            found.unread.add(field)
        else:
            self._add(field, one, found, textual=True)

    def _add(self, field: str, one: Given, found: Found, *, textual: bool) -> None:
        """Add a value; ``textual`` values are parsed. A field that is ``IN_FILE`` may name a file instead."""
        named = isinstance(one.value, str) and not one.value.lstrip().startswith("[")
        if named and IN_FILE in self._fields[field].metadata:
            self._add_listed(field, one, found)
        else:
            found.add(field, self._parsed(field, one) if textual else one)

    def _add_listed(self, field: str, one: Given, found: Found) -> None:
        """Add the list in the file that ``one`` names, from the folder of the props file that says so."""
        folder = Path(one.file).parent if one.file and "://" not in one.file else Path()
        name, problems = property_of(field), list[Problem]()
        try:
            props = read_props(folder / str(one.value))
            others = [Given.of(props, other) for other in props.values if other != name]
            problems = [other.problem(f"expected {name} and nothing else in this file") for other in others]
            if name not in props.values:
                problems.append(Problem(f"missing: {one.origin} expects it in this file", props.file, None, name))
        except SettingsError as error:
            problems = error.problems
        if problems:
            found.problems += problems
            found.unread.add(field)
        else:
            found.add(field, Given.of(props, name))

    def _from_file(self, field: str, variable: str, environ: Mapping[str, str], found: Found) -> None:
        """Add the contents of the file that ``variable`` names: ``MPUSH_REDIS_FILE`` is for ``MPUSH_REDIS``."""
        one, plain_one = Given(environ[variable], variable), variable.removesuffix(FILE_SUFFIX)
        if environ.get(plain_one):
            found.problems.append(one.problem(f"{plain_one} is set as well: expected one of them"))
            return
        try:
            found.add(field, self._parsed(field, Given(secret_in_file(environ[variable]), variable)))
        except NoSecret as error:
            found.problems.append(one.problem(str(error)))
            found.unread.add(field)

    def _hint(self, name: str) -> str:
        """Return ``: did you mean popTimeout?`` for an unknown property or variable, or an empty text."""
        field = self._variables.get(name)
        if field:
            return f": {name} is its name in the environment; in a props file write {self.properties_of(field)[0]}"
        return _hint(nearest(name, self._properties))

    def overriding(self, in_file: Mapping[str, Given], environ: Mapping[str, str]) -> Iterator[tuple[Given, Given]]:
        """Yield the value of a variable without the service's prefix, and the value of ``in_file`` that it replaces.

        Variables with the prefix are meant for the service; REDIS is often set for other programs.
        """
        stronger = self.in_environment(environ).given
        for name, one in in_file.items():
            other = stronger.get(name)
            if other and other.name.removesuffix(FILE_SUFFIX) in FALLBACKS and other.value != one.value:
                yield other, one

    def _prefixed(self, environ: Mapping[str, str]) -> Iterator[str]:
        return (
            name
            for name in sorted(environ)
            if name.startswith(self.prefix) and environ[name] and not self._is_foreign(name, environ[name])
        )

    def _is_foreign(self, variable: str, value: str) -> bool:
        if variable.endswith("_PORT") and FOREIGN_URL.match(value):
            return True
        return variable not in self._variables and FOREIGN.fullmatch(variable, len(self.prefix)) is not None

    def _parsed(self, field: str, one: Given) -> Given:
        """Parse a list from a text: JSON, or items with commas."""
        if not is_list(self._fields[field]) or not isinstance(one.value, str):
            return one
        text = one.value.strip()
        value: object = [part.strip() for part in text.split(",")]
        if text.startswith("["):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = text
        return Given(value, one.name, one.file, one.line)


def _hint(near: str | None) -> str:
    return f": did you mean {near}?" if near else ""
