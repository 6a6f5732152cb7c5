"""``penstock jobs show``: show all about one job."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.encoding import counted
from penstock.cli._frame import Json, run
from penstock.cli._text import age, clock, print_json, print_table, shown
from penstock.cli.jobs._found import Found, add_values, find
from penstock.cli.jobs._jobs import (
    DEFAULT_PREFIX,
    Job,
    Prefix,
    Redis,
    Routes,
    Stream,
    as_fields,
    brief,
    jobs_at,
    no_such_job,
)
from penstock.cli.jobs.list import due_at, finite

if TYPE_CHECKING:
    from penstock.jobs import Completion, DeadJob


def show(
    stream: Stream,
    job: Job,
    values: Annotated[bool, typer.Option("--values", help="Show the values, too, not only their sizes.")] = False,
    scan: Annotated[
        bool, typer.Option("--scan", help="Look for its values among all keys: entries of Node do not name them.")
    ] = False,
    redis: Redis = None,
    route: Routes = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Show one job: where it is in each group, its errors, values, progress and completions.

    Values with their size and the seconds that they live. To find a job by its id, the whole stream is read. The exit
    status is 1 if nothing of it exists.
    """
    run(_show(stream, job, (values, scan, json), redis, route, prefix))


async def _show(
    stream: str, job: str, wanted: tuple[bool, bool, bool], urls: Sequence[str] | None, routes: Sequence[str] | None,
    prefix: str,
) -> int:  # fmt: skip
    contents, scan, as_json = wanted
    async with jobs_at(urls, prefix, routes) as jobs:
        found = await find(jobs, stream, job)
        await add_values(jobs, found, contents=contents, full=as_json, scan=scan)
        if not found.exists:
            raise no_such_job(jobs, stream, job)
    if as_json:
        print_json({"stream": stream, "job": found.id, **_as_json(found)})
    else:
        _print(stream, found)
    return 0


def _as_json(found: Found) -> dict[str, Any]:
    entries = [
        {
            "server": server,
            "entry": state.entry,
            "sent": state.added,
            "fields": _fields(state.fields),
            "groups": [
                {**asdict(stage), "due": finite(stage.due), "errors": errors.get(stage.group, [])}
                for stage in state.stages
            ],
        }
        for server, state, errors in found.entries
    ]
    delayed = [{"server": server, "due": each.due, "fields": _fields(each.fields)} for server, each in found.delayed]
    return {
        "entries": entries,
        "delayed": delayed,
        "dead": [{"server": server, **_dead_fields(each)} for server, each in found.dead],
        "values": [_value_fields(each) for each in found.values],
        "progress": found.progress,
        "completions": [
            {"group": each.group, "at": each.at.timestamp(), "error": each.error} for each in found.completions
        ],
    }


def _dead_fields(dead: "DeadJob") -> dict[str, Any]:
    return {
        "id": dead.id, "group": dead.group, "entry": dead.entry, "attempts": dead.attempts, "at": dead.at,
        "errors": dead.errors, "values": {key: len(value) for key, value in dead.values.items()},
    }  # fmt: skip


def _value_fields(value: dict[str, Any]) -> dict[str, Any]:
    rest = dict(value)
    content = rest.pop("content", None)
    return rest if content is None else rest | as_fields(content)


def _fields(fields: Sequence[str]) -> dict[str, str]:
    """Return the fields of an entry by name, without the values that it has."""
    from penstock.jobs.cancelling import named
    from penstock.jobs.keys import INLINE

    return {name: value for name, value in named(fields).items() if not name.startswith(INLINE)}


def _print(stream: str, found: Found) -> None:
    title = f"job {shown(found.id)} of {shown(stream)}"
    for server, state, errors in found.entries:
        rows: list[tuple[str, object]] = [("entry", f"{state.entry}, sent {clock(state.added)} UTC")]
        rows += [(shown(name), shown(value)) for name, value in _fields(state.fields).items() if name != "job"]
        print_table(f"{title} on {server}", ("what", "value"), rows)
        if state.stages:
            columns = ("group", "state", "attempts", "idle", "consumer")
            print_table("groups", columns, [_stage_row(stage) for stage in state.stages])
        for group, known in errors.items():
            _print_errors(group, known)
    for server, each in found.delayed:
        left = age(each.due - found.now)
        typer.echo(f"{title} on {server}: delayed, begins {clock(each.due)} UTC, in {left}")
    for server, dead in found.dead:
        tried = counted(dead.attempts, "attempt")
        typer.echo(
            f"{title} on {server}: dead in {shown(dead.group)} after {tried}, {clock(dead.at)} UTC; id {dead.id}"
        )
        _print_errors(dead.group, dead.errors)
    for group, value in found.progress.items():
        typer.echo(f"progress in {shown(group)}: {brief(value, 1_000)}")
    if found.values:
        _print_values(found.values)
    if found.completions:
        done = [(clock(each.at.timestamp()), shown(each.group), _outcome(each)) for each in found.completions]
        print_table("completions", ("at (UTC)", "group", "outcome"), done)


def _stage_row(stage: Any) -> tuple[object, ...]:
    state = f"retrying, {due_at(stage.due)}" if stage.state == "retrying" else stage.state
    return shown(stage.group), state, stage.attempts or "-", age(stage.idle), shown(stage.consumer or "-")


def _print_errors(group: str, errors: Sequence[dict[str, Any]]) -> None:
    if errors:
        rows = [(each.get("attempt", "-"), clock(each.get("at")), brief(each.get("error"), 200)) for each in errors]
        print_table(f"errors in {shown(group)}", ("attempt", "at (UTC)", "error"), rows)


def _print_values(values: Sequence[dict[str, Any]]) -> None:
    rows = list[tuple[object, ...]]()
    for each in values:
        if each["bytes"] is None:
            rows.append((shown(each["key"]), "-", "-", "gone"))
            continue
        content = each.get("content")
        cut = "…" if content is not None and len(content) < each["bytes"] else ""
        text = "" if content is None else shown(content) + cut
        rows.append((shown(each["key"]), each["bytes"], age(each["ttl"]) if each["ttl"] else "for ever", text))
    has_text = any(row[3] for row in rows)
    columns = ("value", "bytes", "lives", "content")
    print_table("values", columns if has_text else columns[:3], rows if has_text else [row[:3] for row in rows])


def _outcome(completion: "Completion") -> str:
    return "done" if completion.error is None else brief(completion.error, 200)
