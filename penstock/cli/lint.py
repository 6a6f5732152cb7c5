"""``penstock lint``: validate props files as their services would, and compositions; no service is started."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.errors import Problem
from penstock.cli._frame import (
    Failed,
    Json,
    Misused,
    connected,
    environment,
    require_path,
    run,
    service_named,
)
from penstock.cli._text import print_json, shown
from penstock.cli._url import redis_option

if TYPE_CHECKING:
    from penstock.composition.findings import Finding
    from penstock.composition.model import Composition
    from penstock.composition.service import PartSettings


def lint(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR|FILE", help="Compositions, or props files of any service.")
    ],
    service: Annotated[
        str | None, typer.Option(metavar="NAME", help="The service of FILE, if its name does not begin with it.")
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Report what a Redis Cluster does not support, too.")
    ] = False,
    live: Annotated[bool, typer.Option("--live", help="Check the servers of the compositions, too.")] = False,
    redis: Annotated[str | None, redis_option("With --live, use this server instead of `redis`.")] = None,
    json: Json = False,
) -> None:
    """Validate props files and compositions, naming file and line.

    In a composition every list must have a reader and a writer, or be declared external in its composition.yaml. All
    rules are in docs/composition.md. Exit status 1 if there is a finding; warnings do not count.
    """
    run(_lint(paths, service, cluster, live, redis, json))


async def _lint(
    paths: list[Path], service: str | None, cluster: bool, live: bool, url: str | None, as_json: bool
) -> int:
    from penstock.base.installed import services

    if service is not None and service not in services():
        raise Misused(f"unknown service {service!r}: installed are {_listed(services())}")
    for path in paths:
        require_path(path)
    directories = [path for path in paths if path.is_dir()]
    if live and not directories:
        raise Misused("--live checks compositions: expected a directory")
    judged = {path: _judged(path, service or service_named(path)) for path in paths if path not in directories}
    whole = {path: await _composition(path, cluster, live, url) for path in directories}
    if as_json:
        print_json(_as_json(judged, whole))
    else:
        for path, (problems, warnings) in judged.items():
            _print([*map(str, problems)] or [f"{path}: OK"], warnings)
        for path, (findings, warnings) in whole.items():
            _print(_words(path, findings), warnings)
    failed = any(problems for problems, _ in judged.values())
    return int(failed or any(not finding.note for findings, _ in whole.values() for finding in findings))


def _print(lines: list[str], warnings: list[str]) -> None:
    for line in [*lines, *(f"warning: {warning}" for warning in warnings)]:
        typer.echo(shown(line))


async def _composition(
    directory: Path, cluster: bool, live: bool, url: str | None
) -> "tuple[list[Finding], list[str]]":
    from dataclasses import replace

    from penstock.composition.files import read
    from penstock.composition.lint.rules import lint

    environ = environment(url) if live else {}
    composition = read(directory, environ)
    found = lint(composition)
    if live and not composition.problems:
        seen, is_cluster = await _on_servers(composition)
        found, cluster = found + seen, cluster or is_cluster
    found = [replace(finding, note=False) for finding in found] if cluster else found
    return found, list(
        dict.fromkeys(words for part in composition.parts for words in _warnings(part.settings, part.environ))
    )


def _warnings(settings: "PartSettings | None", environ: Mapping[str, str]) -> list[str]:
    """Return what is unwise in settings that are valid, for a service that is started from here with ``environ``."""
    return settings.warnings({**os.environ, **environ}) if settings else []


async def _on_servers(composition: "Composition") -> "tuple[list[Finding], bool]":
    """Return the findings on the servers, and True if one of them is a Redis Cluster."""
    from penstock.composition.lint.live import check, is_cluster, servers

    found: list[Finding] = []
    cluster = False
    for server, address in servers(composition).items():
        try:
            async with connected(address.url, name="penstock-lint") as redis:
                found += await check(redis, composition, server, address)
                cluster = cluster or await is_cluster(redis)
        except Failed as error:
            found.append(address.finding(str(error)))
    return found, cluster


def _judged(file: Path, service: str | None) -> tuple[list[Problem], list[str]]:
    """Return what is wrong with ``file``, and what is unwise in it."""
    from penstock.base.installed import services
    from penstock.composition.service import load_without_environment, settings_of

    if service is None:
        named = f"name it mpush-*.yaml or pass --service NAME ({_listed(services())})"
        return [Problem(f"cannot tell which service this file is for: {named}", str(file))], []
    settings, problems = load_without_environment(settings_of(service), file, {})
    return problems, _warnings(settings, {}) if settings else []


def _words(directory: Path, findings: "list[Finding]") -> list[str]:
    lines = [f"{finding.problem} [{finding.rule}]" for finding in findings if not finding.note]
    notes = " (not ready for Redis Cluster; details: lint --cluster)" if any(each.note for each in findings) else ""
    return lines or [f"{directory}: OK{notes}"]


def _as_json(
    judged: dict[Path, tuple[list[Problem], list[str]]], whole: "dict[Path, tuple[list[Finding], list[str]]]"
) -> dict[str, Any]:
    files = [
        {"file": str(file), "problems": [*map(asdict, problems)], **_also(warnings)}
        for file, (problems, warnings) in judged.items()
    ]
    compositions = [
        {"composition": str(directory), "findings": [_finding(finding) for finding in findings], **_also(warnings)}
        for directory, (findings, warnings) in whole.items()
    ]
    return {"files": files, **({"compositions": compositions} if compositions else {})}


def _also(warnings: list[str]) -> dict[str, list[str]]:
    return {"warnings": warnings} if warnings else {}


def _finding(finding: "Finding") -> dict[str, Any]:
    return {"rule": finding.rule, "severity": "note" if finding.note else "error", **asdict(finding.problem)}


def _listed(services: Iterable[str]) -> str:
    return ", ".join(sorted(services)) or "none"
