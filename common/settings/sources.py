"""Collect what the operator set, and where: the environment over the props file, by the names of one service."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic.fields import FieldInfo

from common.settings.fields import is_list
from common.settings.props import Props, read_props
from common.settings.redaction import nearest, plain, shown
from penstock.composition.model import property_of
from penstock.errors import Problem, SettingsError
from penstock.secrets import FILE_SUFFIX, NoSecret, secret_in_file

if TYPE_CHECKING:
    from common.settings.redis_hash import Hash

FALLBACKS: Final = {"REDIS": "redis", "loggerLevel": "logger_level"}
"""Variables without the prefix of a service."""

FOREIGN: Final = r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
"""The variables that Kubernetes adds, after the prefix, for a Service of the same name."""


@dataclass(frozen=True)
class Given:
    """A value and where it was set; ``name`` is how the name was written there."""

    value: object
    name: str
    file: str | None = None
    line: int | None = None
    source: str = "environment"
    """What set it if no file did."""

    def problem(self, message: str) -> Problem:
        return Problem(message, self.file, self.line, plain(self.name))

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
        return Found(given, problems, file, found.given, stronger.unread, found.readable)

    def in_file(self, props: Props) -> Found:
        found = Found()
        for name, value in props.values.items():
            one = Given(value, name, props.file, props.lines.get(name))
            if field := self._properties.get(name):
                found.add(field, self._parsed(field, one) if props.textual else one)
            elif name == "service":
                if value != self._service:
                    found.problems.append(one.problem(f"this file is for {shown(value)}, and {self._service} reads it"))
            else:
                found.problems.append(one.problem(f"unknown property{self._hint(name)}"))
        return found

    def in_environment(self, environ: Mapping[str, str]) -> Found:
        """Return the values of the environment; an empty variable counts as absent, as compose files pass it."""
        found = Found()
        for variable in self._prefixed(environ):
            one = Given(environ[variable], variable)
            if field := self._variables.get(variable):
                found.add(field, self._parsed(field, one))
            elif field := self._variables.get(variable.removesuffix(FILE_SUFFIX)):
                self._from_file(field, variable, environ, found)
            else:
                found.problems.append(one.problem(f"unknown variable{_hint(nearest(variable, self._variables))}"))
        for variable, field in FALLBACKS.items():
            if field not in self._fields or field in found.given:
                continue
            if environ.get(variable):
                found.given[field] = Given(environ[variable], variable)
            if environ.get(variable + FILE_SUFFIX):
                self._from_file(field, variable + FILE_SUFFIX, environ, found)
        return found

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
        foreign = re.compile(self.prefix + FOREIGN)
        return (
            name
            for name in sorted(environ)
            if name.startswith(self.prefix) and environ[name] and not foreign.fullmatch(name)
        )

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
