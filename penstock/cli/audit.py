"""``penstock audit``: prove that services have neither lost nor doubled a message."""

import asyncio
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.encoding import counted, encoded
from penstock.cli._frame import DEFAULT_URL, Failed, Json, Misused, complain, connected, environment, require_path, run
from penstock.cli._servers import lists_of
from penstock.cli._text import print_json, print_table, shown
from penstock.cli._url import redis_option
from penstock.cli.status import unknown_namespace

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.accounting.audit import Audit
    from penstock.accounting.tracked import TrackedAudit

COLUMNS = ("list", "taken", "delivered", "dead", "dropped", "pending", "missing")


@dataclass(frozen=True)
class Server:
    """A server and the namespaces to audit there; all that are found if ``namespaces`` is None."""

    url: str
    name: str
    namespaces: tuple[str, ...] | None = None
    required: frozenset[str] = frozenset()
    """Those of ``namespaces`` that must have registered."""


@dataclass(frozen=True)
class Hop:
    """A namespace and the result of its audit; None if no service has registered."""

    server: str
    namespace: str
    result: "Audit | TrackedAudit | None"

    @property
    def holds(self) -> bool:
        return self.result is not None and self.result.holds

    @property
    def problems(self) -> list[str]:
        none = (
            f"no service has registered there: start the composition, or name its server with --redis ({self.server})"
        )
        return [none] if self.result is None else self.result.problems


def audit(
    namespace: Annotated[
        str | None,
        typer.Argument(metavar="NS|DIR", help="The namespace of a service, or the directory of a composition: ./mine."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Audit every namespace on the server.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat every second until ctrl-C; exit status 1 if any check failed.")
    ] = False,
    redis: Annotated[str | None, redis_option(f"The server of the lists: {DEFAULT_URL} by default.")] = None,
    json: Json = False,
) -> None:
    """Prove that no message was lost or doubled.

    For every output list, taken = delivered + dead + dropped + pending. If messages are tracked, taken = registered +
    untracked + dead at the door + pending, and registered = done + dead + expired + in flight + delayed. Answers sent =
    taken + waiting + expired + those in lists that do not expire. An answer counts as taken if its list ended without
    it: the audit cannot tell whether its reader took it or somebody deleted it.

    A message that was removed from a pending list is reported as missing, with the list and the number. A pending list
    that no instance will take over is reported, and so is a list that has a TTL or that the server may evict. What
    happens to a message after its delivery is not seen: any client may pop a subscriber's list.

    All keys of a namespace are read at one instant. To audit a composition, give its directory with a slash (./mine/);
    servers come from its props files or the environment.
    """
    run(_audit(namespace, every, watch, redis, json))


async def _audit(namespace: str | None, every: bool, watch: bool, url: str | None, as_json: bool) -> int:
    if (namespace is None) is not every:
        raise Misused("expected a namespace, a directory with a composition, or --all")
    stop, failed = asyncio.Event(), False
    if watch:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    directory = Path(namespace) if namespace and _is_directory(namespace) else None
    servers = _servers(directory, url) if directory else [Server(url or DEFAULT_URL, "")]
    while True:
        if namespace is None or directory:
            hops = [hop for server in servers for hop in await _hops(server)]
            _print_hops(hops, as_json, brief=watch, many=len(servers) > 1)
            failed = failed or not all(hop.holds for hop in hops)
        else:
            result = await _one(namespace, servers[0].url)
            _print(result, as_json, brief=watch)
            failed = failed or not result.holds
        if not watch or stop.is_set():
            return int(failed)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await stop.wait()
            return int(failed)


def _is_directory(name: str) -> bool:
    """Return True for a name with a slash, and for ``.`` and ``..``: any other is a namespace."""
    return "/" in name or name in (".", "..")


def _servers(directory: Path, url: str | None) -> list[Server]:
    require_path(directory)
    from penstock.composition.files import read_sound

    composition = read_sound(directory, environment(url))
    urls: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    for part in composition.parts:
        if part.namespace and any(end.role == "in" for end in part.ends):
            server = part.server
            urls.setdefault(server, part.urls[0])
            names.setdefault(server, []).append(part.namespace)
    if not names:
        if not any(end.role == "in" for part in composition.parts if part.service for end in part.ends):
            raise Failed(f"{directory}: no service reads a list, so there is nothing to audit")
        raise Failed(
            f"{directory}: no part has a namespace, so nothing is counted; expected redisNamespace in its files"
        )
    started = frozenset(part.namespace for part in composition.parts if part.namespace and part.command)
    return [Server(urls[server], server, tuple(dict.fromkeys(found)), started) for server, found in names.items()]


async def _hops(server: Server) -> list[Hop]:
    from penstock.inspect.namespace import namespaces

    async with connected(server.url) as redis:
        names = await namespaces(redis) if server.namespaces is None else server.namespaces
        lost = await _strays(redis, names)
        hops = [Hop(server.name, name, await _sums(redis, name, lost.get(name, []))) for name in names]
        if not hops:
            raise Failed(f"no service has registered on {server.name or 'this server'}: nothing to audit")
    return [hop for hop in hops if hop.namespace in server.required or (hop.result and _moves(hop.result))]


def _moves(result: "Audit | TrackedAudit") -> bool:
    """Return False for a monitor: it delivers messages of other services, which count them."""
    from penstock.accounting.audit import Audit

    return not isinstance(result, Audit) or bool(result.legs or result.messages or result.problems)


async def _one(namespace: str, url: str) -> "Audit | TrackedAudit":
    from penstock.composition.live.registered import services_without_lists

    async with lists_of(namespace, url) as redis:
        result = await _sums(redis, namespace, (await _strays(redis, [namespace])).get(namespace, []))
        if result is None and (without := await services_without_lists(redis, namespace)):
            raise Failed(f"{', '.join(without)} has no lists: there is nothing to audit in {namespace}")
        if result is None:
            raise await unknown_namespace(redis, redis, namespace)
    return result


async def _strays(redis: "Redis", names: Iterable[str]) -> dict[str, list[str]]:
    """Return by namespace the problems of lists that look like pending lists of unknown instances."""
    from penstock.accounting.audit import describe_stray
    from penstock.base.keys import Keys
    from penstock.inspect.pending import stray_lists

    found = await stray_lists(redis, map(Keys, names))
    lengths = {name: await redis.llen(encoded(name)) for lists in found.values() for name in lists}
    return {ns: [describe_stray(Keys(ns), name, lengths[name]) for name in lists] for ns, lists in found.items()}


async def _sums(redis: "Redis", namespace: str, strays: list[str]) -> "Audit | TrackedAudit | None":
    from penstock.accounting.answers import audit_answers
    from penstock.accounting.audit import audit
    from penstock.accounting.tracked import audit_tracked
    from penstock.base.keys import Keys
    from penstock.inspect.hazards import hazards

    keys = Keys(namespace)
    tracked = await audit_tracked(redis, keys)
    if tracked:
        law, problems = await audit_answers(redis, keys)
        tracked = replace(
            tracked, laws=[*tracked.laws, *([law] if law else [])], problems=[*tracked.problems, *problems]
        )
    result = tracked or await audit(redis, keys)
    return result and replace(result, problems=[*result.problems, *strays, *await hazards(redis, keys)])


def _print_hops(hops: Sequence[Hop], as_json: bool, *, brief: bool, many: bool) -> None:
    if as_json:
        print_json({"hops": [_hop_as_json(hop) for hop in hops], "holds": all(hop.holds for hop in hops)})
        return
    if brief:
        for hop in hops:
            if hop.result:
                _print(hop.result, False, brief=True)
            else:
                _complain(hop)
        return
    if not hops:
        typer.echo("no service here has lists: there is nothing to audit")
        return
    columns = (*(["server"] if many else []), "namespace", "settled", "pending", "result")
    print_table("taken = delivered + dead + dropped + pending, and all that is tracked", columns, _rows(hops, many))
    for hop in hops:
        _complain(hop)


def _rows(hops: Iterable[Hop], many: bool) -> list[list[object]]:
    rows: list[list[object]] = []
    for hop in hops:
        known: list[object] = ["-", "-", "not known"]
        if hop.result:
            words = "conserved" if hop.holds else "NOT CONSERVED"
            known = [hop.result.messages, sum(hop.result.pending.values()), words]
        server = [shown(hop.server)] if many else []
        rows.append([*server, shown(hop.namespace), *known])
    return rows


def _complain(hop: Hop) -> None:
    for problem in hop.problems:
        complain(f"{hop.namespace}: {problem}", 1)
    for note in hop.result.notes if hop.result else ():
        typer.echo(f"{shown(hop.namespace)}: {shown(note)}")


def _hop_as_json(hop: Hop) -> dict[str, Any]:
    server = {"server": hop.server} if hop.server else {}
    if hop.result:
        return {**server, **_as_json(hop.result)}
    return {**server, "namespace": hop.namespace, "problems": hop.problems, "holds": False}


def _print(result: "Audit | TrackedAudit", as_json: bool, *, brief: bool) -> None:
    if as_json:
        print_json(_as_json(result))
        return
    held = sum(result.pending.values())
    if brief:
        wrong = counted(len(result.problems), "problem")
        found = "conserved" if result.holds else f"NOT CONSERVED, {wrong}"
        typer.echo(f"{shown(result.namespace)}: {result.messages:,} settled, {held:,} pending: {found}")
    else:
        _table(result)
    for problem in result.problems:
        complain(problem, 1)
    for note in () if brief else result.notes:
        typer.echo(shown(note))
    if not brief and result.holds:
        typer.echo(f"conserved: {counted(result.messages, 'message')} settled, {held:,} pending")


def _table(result: "Audit | TrackedAudit") -> None:
    from penstock.accounting.audit import Audit

    name = shown(result.namespace)
    if isinstance(result, Audit):
        rows: list[list[object]] = [[shown(leg.name), *_numbers(leg).values()] for leg in result.legs]
        print_table(f"{name}: taken = delivered + dead + dropped + pending", COLUMNS, rows)
        return
    steps = [each for law in result.laws for each in ((law.whole, law.count), *_indented(law.parts))]
    print_table(f"{name}: tracked messages", ("step", "count"), [[*step] for step in steps])


def _indented(parts: dict[str, int]) -> list[tuple[str, int]]:
    return [(f"  {name}", count) for name, count in parts.items()]


def _as_json(result: "Audit | TrackedAudit") -> dict[str, Any]:
    from penstock.accounting.audit import Audit

    if isinstance(result, Audit):
        parts: dict[str, Any] = {"legs": [{"list": leg.name, **_numbers(leg)} for leg in result.legs]}
    else:
        parts = {"laws": [{**asdict(law), "missing": law.difference} for law in result.laws]}
    return {**asdict(result), **parts, "holds": result.holds}


def _numbers(leg: Any) -> dict[str, int]:
    return {name: getattr(leg, name) for name in COLUMNS[1:-1]} | {"missing": leg.difference}
