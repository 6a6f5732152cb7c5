"""``penstock acl``: print the minimal ACL of every service."""

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from penstock.base.errors import SettingsError
from penstock.cli._frame import Json, Misused, complain, environment, require_path, run, service_named
from penstock.cli._text import print_json, shown

if TYPE_CHECKING:
    from penstock.composition.model import Part
    from penstock.core.acl import Rights


def acl(
    path: Annotated[Path | None, typer.Argument(metavar="FILE|DIR", help="A props file, or a composition.")] = None,
    service: Annotated[
        str | None, typer.Option(metavar="NAME", help="The service of FILE, if its name does not say it.")
    ] = None,
    spark: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="A key or pattern that PySpark programs read or write; can be repeated."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="SERVER", help="Print only the lines for this server, without headings, e.g. localhost:6379."
        ),
    ] = None,
    old: Annotated[bool, typer.Option("--old", help="For Redis 6.2, which knows no right to read alone.")] = False,
    json: Json = False,
) -> None:
    """Print the minimal Redis ACL of each service.

    One ACL SETUSER line for each service and server, and two read-only users: status, for penstock status, audit,
    explain, trace, dead, map --live, bus status and queue, and jobs status, list and show; metrics, for an exporter.
    What a service only reads it may only read (%R~), which Redis 6.2 cannot grant: see --old. A user is named as in
    the URL of its server, or else as its process. Replace PASSWORD; a line replaces all previous rights of the user.
    Pipe the output of --server SERVER to redis-cli. --spark adds the user pyspark for your PySpark programs, and then
    FILE or DIR is optional.
    """
    run(_acl(path, service, spark or [], server, old, json))


async def _acl(
    path: Path | None, service: str | None, spark: Sequence[str], only: str | None, old: bool, as_json: bool
) -> int:
    if path:
        require_path(path)
    elif not spark:
        raise Misused("expected FILE, DIR or --spark KEY")
    parts = _parts(path, service) if path else ()
    users = [*_users(parts), *_spark_user(spark)]
    if only is not None:
        there = sorted({where for where, _, _ in users})
        only = _same(only, there)
        if only not in there:
            raise Misused(f"no service uses the server {only!r}: expected one of {', '.join(there)}")
        users = [user for user in users if user[0] == only]
    if as_json:
        print_json({"users": [_as_json(*user, old=old) for user in users]})
        return 0
    server = None
    for where, name, rights in sorted(users, key=lambda user: user[0]):
        if where != server and only is None:
            typer.echo(f"{'' if server is None else chr(10)}# on {shown(where)}")
        server = where
        typer.echo(shown(rights.line(name, old=old)))
    user = urlsplit(os.environ.get("REDIS", "")).username
    if any(name == user for _, name, _ in users):
        words = "its line takes all of its other rights; unset REDIS, and each process gets a user of its own"
        complain(f"{user} is the user of REDIS in the environment: {words}", 0)
    if len(parts) == 1 and parts[0].shape.watches:
        complain(f"{path}: the lists of the watched namespaces are unknown: give the directory of the composition", 0)
    return 0


def _spark_user(keys: Sequence[str]) -> "Iterator[tuple[str, str, Rights]]":
    from penstock.core.acl import spark_rights

    if keys:
        yield "the server of the PySpark programs", "pyspark", reduce(or_, map(spark_rights, keys))


def _parts(path: Path, service: str | None) -> "tuple[Part, ...]":
    from penstock.base.installed import services
    from penstock.composition.files import read_sound
    from penstock.composition.model import Part
    from penstock.composition.service import load_without_environment, settings_of

    if path.is_dir():
        found = tuple(part for part in read_sound(path, environment(None)).parts if part.settings is not None)
        if not found:
            raise Misused(f"{path}: this composition has no services, only programs")
        return found
    name = service or service_named(path)
    if name is None or name not in services():
        known = ", ".join(sorted(services()))
        called = f"name it mpush-*.yaml, write `service: NAME` in it, or pass --service NAME ({known})"
        raise Misused(f"{path}: cannot tell which service this file is for: {called}")
    settings, problems = load_without_environment(settings_of(name), path, environment(None))
    if settings is None:
        raise SettingsError(problems)
    return (Part(path.stem, name, settings.redis_namespace, ends=tuple(settings.shape().ends), settings=settings),)


def _users(parts: "tuple[Part, ...]") -> "Iterator[tuple[str, str, Rights]]":
    """Yield server, user and rights; two processes with the same user share a line."""
    from penstock.core.acl import METRICS_COMMANDS, READ_COMMANDS, Rights

    found: dict[tuple[str, str], Rights] = {}
    for part in parts:
        for url, rights in part.rights.items():
            more = _watched(part, parts) if url == part.urls[0] else ()
            user = unquote(urlsplit(url).username or "") or part.name
            before = found.get((_server(url), user), Rights((), frozenset()))
            found[_server(url), user] = before | rights | Rights(tuple(more), frozenset())
    for (server, user), rights in found.items():
        yield server, user, rights
    for server in dict.fromkeys(server for server, _ in found):
        there = [rights for (where, _), rights in found.items() if where == server]
        keys = tuple(key for rights in there for key in (*rights.keys, *rights.reads, *rights.sets))
        held = (f"{key}:consumer{more}" for key in _written(parts) for more in ("s", "s:steps", ":*"))
        lengths = tuple(key for rights in there for key in rights.lengths)
        yield server, "status", Rights((*keys, *held), READ_COMMANDS, lengths=lengths)
        yield server, "metrics", Rights(keys, METRICS_COMMANDS, lengths=lengths)


def _written(parts: "tuple[Part, ...]") -> "Iterator[str]":
    """Yield the lists that parts write: their consumers may have messages in hand, for which an audit looks."""
    from penstock.base.keys import glob_escaped

    for part in parts:
        yield from (glob_escaped(end.key) for end in part.using("writes") if end.kind == "list")


def _server(url: str) -> str:
    """Return the server of ``url`` whatever the database: users are those of the server."""
    from penstock.base.urls import server_of, split_server

    return split_server(server_of(url))[0]


def _watched(part: "Part", parts: "tuple[Part, ...]") -> Iterator[str]:
    """Yield the keys of the namespaces that ``part`` watches: a monitor reads their lists and pushes to some."""
    from penstock.base.keys import glob_escaped

    yield from (glob_escaped(end.key) for end in part.ends if end.url == part.urls[0])
    for other in parts:
        if other is not part and any(fnmatchcase(other.namespace or "", name) for name in part.shape.watches):
            yield from other.rights[other.urls[0]].keys
            yield from (glob_escaped(end.key) for end in other.shape.watched if end.url == other.urls[0])


def _same(server: str, known: Sequence[str]) -> str:
    """Return ``server`` as it is in ``known``: 127.0.0.1 is localhost, and 6379 the port."""
    if server in known or "/" in server:
        return server
    found = _server(f"redis://{server}")
    return found if found in known else server


def _as_json(server: str, user: str, rights: "Rights", *, old: bool) -> dict[str, Any]:
    found = {"keys": sorted(set(rights.keys)), "channels": list(rights.channels), "commands": sorted(rights.commands)}
    found |= {"reads": sorted(set(rights.reads + rights.sets)), "sets": sorted(set(rights.sets))}
    found |= {"lengths": sorted(set(rights.lengths))}
    return {"server": server, "user": user, **found, "line": rights.line(user, old=old)}
