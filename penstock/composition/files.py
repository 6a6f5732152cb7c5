"""Reading of a composition from its files: Procfile or compose.yaml, props files, composition.yaml."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.base.errors import PenstockError, Problem, SettingsError
from penstock.base.installed import module_of, service_of, services
from penstock.base.secrets import is_reference, without_files
from penstock.base.shape import End, Shape, Use
from penstock.composition.declared import DECLARED, Declared, Program, read_declared
from penstock.composition.lines import precise
from penstock.composition.model import Composition, External, Part, connected
from penstock.composition.processes import DeclaredProcess, of_containers, of_procfile
from penstock.composition.service import DEFAULT_URL, PartSettings, load_without_environment, settings_of

PROPS: Final = (".js", ".cjs", ".mjs", ".json", ".json5", ".toml", ".yaml", ".yml", ".env")


def read(directory: Path, environ: Mapping[str, str] | None = None) -> Composition:
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
        where = given.get("REDIS") or process.environ.get("REDIS") or DEFAULT_URL
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
    return Composition(whole, external, tuple(problems), str(directory), declared.chaos, declared.file)


def read_sound(directory: Path, environ: Mapping[str, str] | None = None) -> Composition:
    """Like ``read``, but raise ``SettingsError`` with all problems of single files."""
    composition = read(directory, environ)
    if composition.problems:
        raise SettingsError(list(composition.problems))
    return composition


def _processes(directory: Path, problems: list[Problem]) -> list[DeclaredProcess]:
    procfile = directory / "Procfile"
    containers = next(
        (directory / name for name in ("compose.yaml", "compose.yml") if (directory / name).is_file()), None
    )
    if procfile.is_file():
        return list(of_procfile(procfile, problems))
    if containers:
        return list(of_containers(containers, problems))
    if any(file.suffix in PROPS and service_of(file) for file in _files(directory)):
        return []
    what = "a Procfile, a compose.yaml or props files such as mpush.yaml"
    raise PenstockError(f"{directory}: no composition found; expected {what}")


def _settings_of(
    process: DeclaredProcess, directory: Path, environ: Mapping[str, str], problems: list[Problem]
) -> tuple[PartSettings | None, Path | None]:
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
) -> PartSettings | None:
    if not environ.get("REDIS"):
        environ = {**environ, "REDIS": ""}
    settings, found = load_without_environment(settings_of(service), file, environ)
    problems += [problem for problem in found if problem not in problems]
    return settings


def _part(
    name: str,
    settings: PartSettings | None,
    file: object,
    declared: Declared,
    process: DeclaredProcess | None = None,
    here: str = DEFAULT_URL,
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
