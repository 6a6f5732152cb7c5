"""``penstock plan`` and ``penstock apply``: change a running composition to match its files, without a restart."""

import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.encoding import counted
from penstock.cli._frame import Failed, Json, Misused, complain, connected, environment, require_path, run
from penstock.cli._text import print_json, print_table, shown
from penstock.cli._url import redis_option

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.composition.model import Composition, Part
    from penstock.composition.rollout.current import CurrentState
    from penstock.composition.rollout.steps import Options, Plan, Step

RegisteredLists = Annotated[Path, typer.Argument(metavar="DIR", help="The composition.")]
Rename = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="OLD=NEW", help="Rename one of several subscriber lists."),
]
Backfill = Annotated[
    list[str] | None,
    typer.Option("--backfill", metavar="NEW=LIST", help="Copy the messages of LIST to the new subscriber list NEW."),
]
Drain = Annotated[bool, typer.Option("--drain", help="Wait until the lists of removed subscribers are empty.")]
Drop = Annotated[bool, typer.Option("--drop", help="Delete the messages in the lists of removed subscribers.")]
Reload = Annotated[bool, typer.Option("--reload", help="Have every service reload its settings.")]
Server = Annotated[str | None, redis_option("Use this server instead of `redis` in the files.")]


def plan(
    directory: RegisteredLists,
    rename: Rename = None,
    backfill: Backfill = None,
    drain: Drain = False,
    drop: Drop = False,
    reload: Reload = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with status 1 if there is anything to do.")] = False,
    redis: Server = None,
    json: Json = False,
) -> None:
    """Show how a running composition differs from its files.

    Prints the steps of `penstock apply` and changes nothing. Only the lists that services read and write are compared;
    their other settings are not published. Exit status 1 if a step is refused.
    """
    run(_plan(_Call(directory, _options(rename, backfill, drain, drop, reload), redis, json), check))


def apply(
    directory: RegisteredLists,
    rename: Rename = None,
    backfill: Backfill = None,
    drain: Drain = False,
    drop: Drop = False,
    reload: Reload = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for one step.")] = 60,
    redis: Server = None,
    json: Json = False,
) -> None:
    """Change a running composition to match its files.

    Orders the services to reload their settings, the writers of a list before its readers, and moves the messages of
    renamed lists. Stops at the first step that fails; run it again to continue, also after a kill -9. Each service
    reads its own file: change that first, on the machine where it runs.
    """
    run(_apply(_Call(directory, _options(rename, backfill, drain, drop, reload), redis, json), yes, wait))


@dataclass(frozen=True)
class _Call:
    directory: Path
    options: "Options"
    url: str | None
    json: bool


def _options(
    rename: Iterable[str] | None, backfill: Iterable[str] | None, drain: bool, drop: bool, reload: bool
) -> "Options":
    from penstock.composition.rollout.steps import Options

    if drain and drop:
        raise typer.BadParameter("--drain and --drop exclude each other")
    return Options(_pairs("--rename", rename), _pairs("--backfill", backfill), drain, drop, reload)


def _pairs(option: str, words: Iterable[str] | None) -> dict[str, str]:
    pairs = [word.partition("=") for word in words or ()]
    for left, _, right in pairs:
        if not left or not right or left == right:
            raise typer.BadParameter(f"{option} takes two names of lists with = between them")
    return {left: right for left, _, right in pairs}


async def _plan(call: _Call, check: bool) -> int:
    async with _planned(call) as found:
        if call.json:
            print_json(_as_json(found))
        else:
            _print(call.directory, found)
        return int(bool(found.refused) or (check and bool(found.steps)))


async def _apply(call: _Call, yes: bool, wait: float) -> int:
    require_path(call.directory)
    if not yes and (call.json or not sys.stdin.isatty()):
        raise Misused("cannot ask without a terminal: run penstock plan first, then pass --yes")
    async with _planned(call) as found:
        if not call.json:
            _print(call.directory, found)
        if found.refused:
            if call.json:
                print_json(_as_json(found))
            return 1
        if not yes and found.steps and not typer.confirm("Do it?"):
            return 1
        done, failure = await _run_steps(found, wait, call.json)
    if call.json:
        print_json(_as_json(found, done, failure))
    return int(bool(failure or found.manual)) or await _report_late_messages(call)


async def _run_steps(found: "Plan", wait: float, quiet: bool) -> tuple[list[str], str]:
    """Do the steps. Return the result of each that was done, and why the next one failed."""
    from redis.exceptions import RedisError

    from penstock.base.errors import PenstockError
    from penstock.composition.rollout.apply import run_step, write_notes

    steps, done = [step for step in found.steps if step not in found.manual], list[str]()
    try:
        await write_notes(found)
        for number, step in enumerate(steps, start=1):
            started = time.monotonic()
            done.append(await run_step(step, wait))
            if not quiet:
                line = f"{number}/{len(steps)} {step.kind} {shown(step.description)}: {shown(done[-1])}"
                typer.echo(f"{line} ({time.monotonic() - started:.1f} s)")
    except (PenstockError, RedisError) as error:
        complain(error, 1)
        left = [f"{step.kind} {step.description}" for step in steps[len(done) :]]
        complain(f"{len(done)} of {len(steps)} steps are done; not done: {'; '.join(left)}. Apply again to go on", 1)
        return done, str(error)
    for step in found.manual:
        complain(f"{step.by.namespace}: {step.description}", 1)
    return done, ""


async def _report_late_messages(call: _Call) -> int:
    """Report messages that arrived in old lists meanwhile, which have no reader any more, and steps left to do."""
    from dataclasses import replace

    from penstock.composition.rollout.steps import Options

    async with _planned(replace(call, options=Options(drain=call.options.drain, drop=call.options.drop))) as left:
        for step in left.steps:
            if step.kind == "move" and step.list and step.to:
                there = f"push to {step.to.key}, and apply again to have them moved"
                many = f"{counted(step.messages or 0, 'message')}, pushed meanwhile or in hand of a worker"
                complain(f"{step.list.key} has {many}: {there}", 1)
            else:
                complain(f"still to be done: {step.kind} {step.description}", 1)
        return int(any(step.kind != "move" for step in left.steps))


@asynccontextmanager
async def _planned(call: _Call) -> "AsyncIterator[Plan]":
    """Yield the plan while its servers are connected."""
    from penstock.base.shape import Place
    from penstock.composition.files import read_sound
    from penstock.composition.rollout.apply import in_hand
    from penstock.composition.rollout.current import lengths
    from penstock.composition.rollout.difference import compare
    from penstock.composition.rollout.plan import plan

    require_path(call.directory)
    composition = read_sound(call.directory, environment(call.url))
    async with AsyncExitStack() as servers:
        states = await _states(composition, servers)
        found = compare(composition, states, call.options)
        held: dict[Place, int] = {}
        for server, redis in {one.place("").server: one.redis for one in states}.items():
            keys = sorted(place.key for place in found.places() if place.server == server)
            held |= {Place(key, server): length for key, length in (await lengths(redis, keys)).items()}
        for old, rename in found.renames.items():
            held[old] = held.get(old, 0) + sum(await in_hand(rename.by.redis, old.key))
        yield plan(composition, states, found, held, call.options)


async def _states(composition: "Composition", servers: AsyncExitStack) -> "list[CurrentState]":
    """Connect to all servers and return the current state of each namespace."""
    from penstock.base.urls import server_of
    from penstock.composition.rollout.current import read_current

    clients: dict[str, Redis] = {}

    async def client(url: str) -> "Redis":
        if server_of(url) not in clients:
            clients[server_of(url)] = await servers.enter_async_context(connected(url))
        return clients[server_of(url)]

    parts: dict[tuple[str, str], Part] = {}
    for part in composition.parts:
        if part.namespace:
            parts.setdefault((part.server, part.namespace), part)
    if not parts:
        raise Failed(
            f"{composition.directory}: no part has a namespace, so it is not known what runs; expected redisNamespace"
        )
    states = []
    for part in parts.values():
        lists, registrations = part.urls
        states.append(await read_current(part, await client(lists), await client(registrations)))
    return states


def _print(directory: Path, found: "Plan") -> None:
    if not found.steps:
        typer.echo(f"{shown(str(directory))}: nothing to do")
        return
    rows = [[number, *_row(step)] for number, step in enumerate(found.steps, start=1)]
    print_table(shown(str(directory)), ("", "step", "of", "what", "messages"), rows)
    for step in found.refused:
        complain(f"{step.by.namespace}: {step.refused}", 1)


def _row(step: "Step") -> Sequence[object]:
    messages = "" if step.messages is None else f"{step.messages:,}"
    return [step.kind, shown(step.by.namespace), shown(step.description), messages]


def _as_json(found: "Plan", done: Sequence[str] = (), failure: str | None = None) -> dict[str, Any]:
    """Return the plan as JSON, with results if it was applied; ``failure`` is None if it was not."""
    outcomes = iter(done)
    steps = []
    for step in found.steps:
        came = {} if failure is None or step in found.manual else {"done": next(outcomes, None)}
        steps.append({**_step_as_json(step), **came})
    return {"steps": steps, **({} if failure is None else {"failed": failure or None})}


def _step_as_json(step: "Step") -> dict[str, Any]:
    place = {"server": step.list.server, "list": step.list.key} if step.list else {}
    return {
        "step": step.kind,
        "namespace": step.by.namespace,
        **place,
        **({"to": step.to.key} if step.to else {}),
        **({} if step.messages is None else {"messages": step.messages}),
        "words": step.description,
        "refused": step.refused or None,
    }
