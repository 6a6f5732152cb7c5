"""The processes that a Procfile or a compose.yaml starts."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from penstock.base import yaml_documents
from penstock.base.errors import Problem, SettingsError
from penstock.base.installed import module_of, service_of, services
from penstock.base.secrets import is_reference, without_secrets
from penstock.composition.procfile import read_procfile

BEFORE: Final = re.compile(
    r"""\s*(?:(?P<exec>exec)\s+|env\s+(?=\w+=)|(?P<given>[A-Za-z_]\w*=(?:'[^']*'|"[^"]*"|[^\s'"])*)\s+)"""
)
"""What may precede the program in a command of a Procfile: ``exec``, ``env`` and variables."""
QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*"|[^'"]+""")


@dataclass(frozen=True)
class DeclaredProcess:
    """A process of a Procfile or compose.yaml; ``mounts`` are host paths by path in the container."""

    name: str
    file: str
    words: tuple[str, ...]
    command: str
    environ: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, Path] = field(default_factory=dict)

    @property
    def module(self) -> str | None:
        """Return the module after ``python -m``, or the first word for an image with that entry point."""
        if "-m" in self.words:
            return next(iter(self.words[self.words.index("-m") + 1 :]), None)
        return next((word for word in self.words[:1] if re.fullmatch(r"\w+(\.\w+)+", word)), None)

    @property
    def call(self) -> tuple[str, ...]:
        """Return the module and its arguments, with host paths; empty if it takes more than Python to run it."""
        words = self.words
        if words[1:2] == ("-m",) and re.fullmatch(r"(.*/)?python[\d.]*", words[0]):
            words = words[2:]
            if re.search(r"[$`|&;<>*?~()]", self.command):
                return ()
        elif words[:1] != (self.module,):
            return ()
        props = self.props()
        return tuple(str(props) if props and Path(word).name == props.name else word for word in words)

    @property
    def named(self) -> str | None:
        """Return the props file or reference that the command names; None without one."""
        named = self.environ.get("PROPS_FILE") or self.environ.get("propsFile")
        for place, word in enumerate(self.words):
            if word == "--props" and place + 1 < len(self.words):
                named = self.words[place + 1]
            elif word.startswith("--props="):
                named = word.partition("=")[2]
        return named

    def props(self) -> Path | None:
        """Return the host path of its props file; None if it reads no file."""
        named = self.named
        if named is None or is_reference(named):
            return None
        for inside, outside in self.mounts.items():
            if PurePosixPath(named).is_relative_to(inside):
                return outside / PurePosixPath(named).relative_to(inside)
        return Path(named)


def of_procfile(file: Path, problems: list[Problem]) -> Iterator[DeclaredProcess]:
    """Yield the processes of a Procfile; append what is wrong with it to ``problems``."""
    try:
        commands = read_procfile(file)
    except SettingsError as error:
        problems += error.problems
        return
    for name, command in commands.items():
        given, replaces_shell = dict[str, str](), False
        while found := BEFORE.match(command):
            command = command[found.end() :]
            replaces_shell |= found["exec"] is not None
            if found["given"]:
                variable, _, value = found["given"].partition("=")
                given[variable] = QUOTED.sub(_expanded, value)
        words = _as_module(_split(command))
        yield DeclaredProcess(name, str(file), words, f"exec {command}" if replaces_shell else command, given)


def _expanded(part: re.Match[str]) -> str:
    """Expand variables as a shell does, not within single quotes; the value is not split."""
    return part[0].strip("'") if part[0].startswith("'") else os.path.expandvars(part[0].strip('"'))


def of_containers(file: Path, problems: list[Problem]) -> Iterator[DeclaredProcess]:
    """Yield the processes of a compose.yaml that run a module; append what is wrong with it to ``problems``."""
    try:
        content = yaml_documents.load_yaml(file.read_text())
        found: dict[str, Any] = content["services"]
        found.items()
    except yaml.YAMLError as error:
        reason, line = yaml_documents.describe_yaml_error(error)
        problems.append(Problem(f"not YAML: {reason}", str(file), line))
        return
    except (KeyError, TypeError, AttributeError) as error:
        problems.append(Problem(f"expected the services of docker compose: {error}", str(file)))
        return
    for name, service in found.items():
        command = service.get("command") or []
        words = _split(command) if isinstance(command, str) else [str(word) for word in command]
        given = service.get("environment") or {}
        if isinstance(given, list):
            given = dict(str(each).partition("=")[::2] for each in given)
        volumes = [str(volume).split(":") for volume in service.get("volumes") or [] if isinstance(volume, str)]
        mounts = {parts[1]: file.parent / parts[0] for parts in volumes if len(parts) > 1 and parts[0][:1] in "./"}
        environ = without_secrets({name: str(value) for name, value in given.items()})
        process = DeclaredProcess(name, str(file), _as_module(words), shlex.join(words), environ, mounts)
        if process.module:
            yield process


def _as_module(words: Sequence[str]) -> tuple[str, ...]:
    """Return ``penstock run FILE`` as the call that it becomes; ``words`` if the file's name does not say which."""
    found = re.fullmatch(r"(?:(?:\S*/)?penstock|\S*python[\d.]* -m penstock) run (.+)", " ".join(words[:5]))
    if not found:
        return tuple(words)
    rest = words[words.index("run") + 1 :]
    options = {name: value for name, value in pairwise([*rest, ""]) if name == "--service"}
    options |= dict(word.split("=", 1) for word in rest if word.startswith("--service="))
    file = next((word for word in rest if not word.startswith("-") and word not in options.values()), None)
    name = options.get("--service") or (service_of(Path(file)) if file else None)
    return ("python", "-m", module_of(name), "--props", file) if file and name in services() else tuple(words)


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an unclosed quote: the shell will report it
        return command.split()
