"""Reading of a composition from its files: Procfile or compose.yaml, props files, composition.yaml."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final

import yaml

from penstock import yaml_documents
from penstock.composition.declared import DECLARED, Declared, Program, read_declared
from penstock.composition.lines import precise
from penstock.composition.model import End, External, Part, Shape, Topology, Use, connected
from penstock.composition.procfile import read_procfile
from penstock.composition.service import ServiceSettings, ServiceSettingsType
from penstock.errors import PenstockError, Problem, SettingsError
from penstock.secrets import is_reference, without_files, without_secrets

PROPS: Final = (".js", ".cjs", ".mjs", ".json", ".json5", ".toml", ".yaml", ".yml", ".env")
BEFORE: Final = re.compile(
    r"""\s*(?:(?P<exec>exec)\s+|env\s+(?=\w+=)|(?P<given>[A-Za-z_]\w*=(?:'[^']*'|"[^"]*"|[^\s'"])*)\s+)"""
)
"""What may precede the program in a command of a Procfile: ``exec``, ``env`` and variables."""
QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*"|[^'"]+""")
HERE: Final = "redis://localhost:6379/0"
"""The server of a program that has no REDIS of its own."""


@dataclass(frozen=True)
class Process:
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


def read(directory: Path, environ: Mapping[str, str] | None = None) -> Topology:
    """Return the composition of ``directory``; all its processes get ``environ`` in addition to their own variables.

    REDIS in ``environ`` overrides that of containers, whose host names mean nothing outside.

    Problems of single files are in ``problems``. Raise ``PenstockError`` if there is no composition.
    """
    problems: list[Problem] = []
    declared = read_declared(directory / DECLARED, problems)
    given = dict(environ or {})
    parts, used = list[tuple[Part, Shape]](), set[Path]()
    processes = _processes(directory, problems)
    for process in processes:
        settings, file = _settings_of(process, directory, given, problems)
        used |= {file.resolve()} if file else set()
        where = given.get("REDIS") or process.environ.get("REDIS") or HERE
        parts.append(_part(process.name, settings, file or process.file, declared, process, where))
    common = {process.environ.get("REDIS", "") for process in processes}
    shared = {"REDIS": common.pop()} if len(common) == 1 else {}
    for file, service in _unused(directory, used):
        if settings := _loaded(service, file, {**shared, **given}, problems):
            parts.append(_part(file.stem, settings, file, declared))
    whole = precise(connected(parts))
    named = {part.name for part in whole}
    for name, program in declared.programs.items():
        if name not in named:
            message = f"no process is called {name!r}: expected one of {', '.join(sorted(named))}"
            problems.append(Problem(message, declared.file, program.line))
    external = External(tuple(declared.external_reads), tuple(declared.external_writes))
    return Topology(whole, external, tuple(problems), str(directory), declared.chaos, declared.file)


def read_sound(directory: Path, environ: Mapping[str, str] | None = None) -> Topology:
    """Like ``read``, but raise ``SettingsError`` with all problems of single files."""
    topology = read(directory, environ)
    if topology.problems:
        raise SettingsError(list(topology.problems))
    return topology


def services() -> dict[str, EntryPoint]:
    """Return the entry points of all installed services, by name."""
    return {entry.name: entry for entry in entry_points(group="penstock.services")}


def settings_of(service: str) -> ServiceSettingsType:
    """Return the settings class of an installed service. Raise ``PenstockError`` if it cannot be imported."""
    try:
        loaded: ServiceSettingsType = services()[service].load()
    except (ImportError, AttributeError) as error:
        raise PenstockError(f"the service {service} is not installed correctly: {error}") from error
    return loaded


def module_of(service: str) -> str:
    """Return the module for ``python -m`` of an installed service: the package of its settings."""
    return services()[service].value.partition(":")[0].rpartition(".")[0]


def service_of(file: PurePath) -> str | None:
    """Return the service with the longest name that ``file`` begins with: ``mpush.yaml``; None if there is none."""
    begins = [name for name in services() if file.name.startswith(name) and not file.name[len(name) :][:1].isalnum()]
    return max(begins, key=len, default=None)


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


def _processes(directory: Path, problems: list[Problem]) -> list[Process]:
    procfile = directory / "Procfile"
    containers = next(
        (directory / name for name in ("compose.yaml", "compose.yml") if (directory / name).is_file()), None
    )
    if procfile.is_file():
        return list(_of_procfile(procfile, problems))
    if containers:
        return list(_of_containers(containers, problems))
    if any(file.suffix in PROPS and service_of(file) for file in _files(directory)):
        return []
    what = "a Procfile, a compose.yaml or props files such as mpush.yaml"
    raise PenstockError(f"{directory}: no composition found; expected {what}")


def _of_procfile(file: Path, problems: list[Problem]) -> Iterator[Process]:
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
        yield Process(name, str(file), words, f"exec {command}" if replaces_shell else command, given)


def _expanded(part: re.Match[str]) -> str:
    """Expand variables as a shell does, not within single quotes; the value is not split."""
    return part[0].strip("'") if part[0].startswith("'") else os.path.expandvars(part[0].strip('"'))


def _of_containers(file: Path, problems: list[Problem]) -> Iterator[Process]:
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
        process = Process(name, str(file), _as_module(words), shlex.join(words), environ, mounts)
        if process.module:
            yield process


def _settings_of(
    process: Process, directory: Path, environ: Mapping[str, str], problems: list[Problem]
) -> tuple[ServiceSettings | None, Path | None]:
    """Return the settings of a service and their file; None for a program."""
    by_module = {module_of(name): name for name in services()}
    service = by_module.get(process.module or "")
    if service is None:
        return None, None
    file = process.props()
    if file and not file.is_file() and (directory / file.name).is_file():
        file = directory / file.name
    stronger = {"REDIS": environ["REDIS"]} if environ.get("REDIS") else {}
    source = process.named if process.named and is_reference(process.named) else file
    return _loaded(service, source, without_files({**environ, **process.environ, **stronger}), problems), file


def _loaded(
    service: str, file: Path | str | None, environ: dict[str, str], problems: list[Problem]
) -> ServiceSettings | None:
    if not environ.get("REDIS"):
        environ = {**environ, "REDIS": ""}
    settings = settings_of(service)
    try:
        return settings.load(file, environ)
    except SettingsError as error:
        told = [problem for problem in error.problems if not (problem.property == "redis" and problem.line is None)]
        if not told:
            return settings.load(file, {**environ, "REDIS": HERE})  # left to the environment
        problems += [problem for problem in told if problem not in problems]
        return None


def _part(
    name: str,
    settings: ServiceSettings | None,
    file: object,
    declared: Declared,
    process: Process | None = None,
    here: str = HERE,
) -> tuple[Part, Shape]:
    started: dict[str, Any] = {}
    if process:
        started = {"command": process.command, "module": process.call, "environ": process.environ}
    if settings is not None:
        service, namespace = settings.service, settings.redis_namespace
        return Part(name, service, namespace, str(file), settings=settings, **started), settings.shape()
    program = declared.programs.get(name, Program())
    ends = list(_declared_ends(program, declared, here))
    shape = Shape(ends, promise=declared.chaos.promise, ordered=program.ordered)
    return Part(name, file=str(file), **started), shape


def _declared_ends(program: Program, declared: Declared, here: str) -> Iterator[End]:
    uses: Iterable[tuple[Use, str, list[str]]] = (
        ("reads", "in", program.reads),
        ("writes", "out", program.writes),
        ("keeps", "pending", program.keeps),
    )
    for use, role, keys in uses:
        for key in keys:
            yield End(key, role, use, use, program.redis or here, origin=f"{declared.file}:{program.line}")


def _unused(directory: Path, used: set[Path]) -> Iterator[tuple[Path, str]]:
    """Yield props files that no process reads, with their service."""
    for file in _files(directory):
        service = service_of(file)
        if service and file.suffix in PROPS and file.resolve() not in used:
            yield file, service


def _files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if file.is_file()) if directory.is_dir() else []


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an unclosed quote: the shell will report it
        return command.split()
