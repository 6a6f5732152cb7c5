"""``penstock lint``: validates props files as the service itself would, without starting it."""

from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.frame import Failed, Json, Misused, run
from penstock.cli.text import print_json, shown
from penstock.errors import Problem, SettingsError


def lint(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Props files of any service.")],
    service: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose they are, unless their names begin with it: mpush.yaml.")
    ] = None,
    json: Json = False,
) -> None:
    """Validate props files, naming file and line."""
    run(_lint(files, service, json))


async def _lint(files: list[Path], service: str | None, as_json: bool) -> int:
    services = {entry.name: entry for entry in entry_points(group="penstock.services")}
    if service is not None and service not in services:
        raise Misused(f"no service is called {service!r}: installed are {_listed(services)}")
    found = {file: _problems(file, services, service or _service_of(file, services)) for file in files}
    if as_json:
        print_json({"files": [{"file": str(file), "problems": [*map(asdict, found[file])]} for file in found]})
    else:
        for file, problems in found.items():
            typer.echo("\n".join(shown(str(problem)) for problem in problems) or f"{shown(str(file))}: fine")
    return int(any(found.values()))


def _service_of(file: Path, services: dict[str, EntryPoint]) -> str | None:
    """The longest name that the file's begins with: ``mpush.yaml``, ``mpush-redis.js``, ``mpush.prod.json``."""
    begins = [name for name in services if file.name.startswith(name) and not file.name[len(name) :][:1].isalnum()]
    return max(begins, key=len, default=None)


def _problems(file: Path, services: dict[str, EntryPoint], service: str | None) -> list[Problem]:
    if service is None:
        message = f"no service's name begins its name: rename it, or say --service; installed are {_listed(services)}"
        return [Problem(message, str(file))]
    try:
        settings = services[service].load()
    except (ImportError, AttributeError) as error:
        raise Failed(f"the service {service} is not installed as it should be: {error}") from error
    try:
        settings.load(file, {})
    except SettingsError as error:
        return [problem for problem in error.problems if not _left_to_environment(problem)]
    return []


def _left_to_environment(problem: Problem) -> bool:
    """A composition may leave the server's URL to the variable REDIS, which is none of the file's business."""
    return problem.property == "redis" and problem.line is None


def _listed(services: dict[str, EntryPoint]) -> str:
    return ", ".join(sorted(services)) or "none"
