"""``penstock lint``: props files as the service itself would see them, compositions as a whole; nothing is started."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.frame import Failed, Json, Misused, connected, run, surroundings
from penstock.cli.text import print_json, shown
from penstock.errors import Problem, SettingsError

if TYPE_CHECKING:
    from penstock.topology import Topology
    from penstock.topology.findings import Finding


def lint(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR|FILE...", help="Compositions, or props files of any service.")
    ],
    service: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose the files are, unless their names say it: mpush.yaml.")
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="The servers are Redis Clusters.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Look at the compositions' servers, too.")] = False,
    redis: Annotated[
        str | None, typer.Option("--redis", envvar="REDIS", metavar="URL", help="With --live, in place of `redis`.")
    ] = None,
    json: Json = False,
) -> None:
    """Validate props files and compositions, naming file and line.

    In a composition every list must have a reader and a writer, or be external in its composition.yaml; that and all
    other rules are in docs/composition.md. Exit status 1 where anything was found.
    """
    run(_lint(paths, service, cluster, live, redis, json))


async def _lint(
    paths: list[Path], service: str | None, cluster: bool, live: bool, url: str | None, as_json: bool
) -> int:
    from penstock.topology.files import service_of, services

    if service is not None and service not in services():
        raise Misused(f"no service is called {service!r}: installed are {_listed(services())}")
    directories = [path for path in paths if path.is_dir()]
    if live and not directories:
        raise Misused("--live is about compositions: expected a directory")
    problems = {path: _problems(path, service or service_of(path)) for path in paths if path not in directories}
    findings = {path: await _composition(path, cluster, live, url) for path in directories}
    if as_json:
        print_json(_plain(problems, findings))
    else:
        for path, found in problems.items():
            typer.echo("\n".join(shown(str(problem)) for problem in found) or f"{shown(str(path))}: fine")
        for path, told in findings.items():
            typer.echo("\n".join(map(shown, _words(path, told))))
    return int(any(problems.values()) or any(not finding.note for told in findings.values() for finding in told))


async def _composition(directory: Path, cluster: bool, live: bool, url: str | None) -> "list[Finding]":
    from dataclasses import replace

    from penstock.topology.files import read
    from penstock.topology.rules import lint

    environ = surroundings(url) if live else {}
    topology = read(directory, environ)
    found = lint(topology)
    if live and not topology.problems:
        seen, is_cluster = await _on_servers(topology)
        found, cluster = found + seen, cluster or is_cluster
    return [replace(finding, note=False) for finding in found] if cluster else found


async def _on_servers(topology: "Topology") -> "tuple[list[Finding], bool]":
    """What is wrong there, and whether one of them is a Redis Cluster."""
    from penstock.topology.running import check, is_cluster, servers

    found: list[Finding] = []
    cluster = False
    for server, address in servers(topology).items():
        try:
            async with connected(address.url, name="penstock-lint") as redis:
                found += await check(redis, topology, server, address)
                cluster = cluster or await is_cluster(redis)
        except Failed as error:
            found.append(address.finding(str(error)))
    return found, cluster


def _problems(file: Path, service: str | None) -> list[Problem]:
    from penstock.topology.files import services

    if service is None:
        named = f"rename it, or say --service; installed are {_listed(services())}"
        return [Problem(f"no service's name begins its name: {named}", str(file))]
    try:
        settings = services()[service].load()
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


def _words(directory: Path, findings: "list[Finding]") -> list[str]:
    lines = [f"{finding.problem} [{finding.rule}]" for finding in findings if not finding.note]
    elsewhere = " for a Redis Cluster it is not: see --cluster" if any(finding.note for finding in findings) else ""
    return lines or [f"{directory}: fine{';' if elsewhere else ''}{elsewhere}"]


def _plain(problems: dict[Path, list[Problem]], findings: "dict[Path, list[Finding]]") -> dict[str, Any]:
    files = [{"file": str(file), "problems": [*map(asdict, found)]} for file, found in problems.items()]
    compositions = [
        {"composition": str(directory), "findings": [_finding(finding) for finding in told]}
        for directory, told in findings.items()
    ]
    return {"files": files, **({"compositions": compositions} if compositions else {})}


def _finding(finding: "Finding") -> dict[str, Any]:
    return {"rule": finding.rule, "severity": "note" if finding.note else "error", **asdict(finding.problem)}


def _listed(services: Iterable[str]) -> str:
    return ", ".join(sorted(services)) or "none"
