"""``penstock jobs status``: show the streams of jobs and their groups."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.base.encoding import counted
from penstock.cli._frame import Json, run
from penstock.cli._progress import progress
from penstock.cli._text import print_json, print_table, shown
from penstock.cli.jobs._jobs import DEFAULT_PREFIX, Prefix, Redis, at, jobs_at, no_such_stream

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.inspect.jobs import GroupState, StreamState
    from penstock.jobs import Jobs

DEFAULT_ROWS: Final = 100
STREAMS: Final = ("stream", "length", "delayed", "dead", "workers", "more")
GROUPS: Final = ("stream", "group", "waiting", "running", "retrying", "oldest", "alive")


def status(
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="[STREAM]...", help="Streams to show; default: all.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Show at most this many streams a server; default: {DEFAULT_ROWS}, with --json all."),
    ] = None,
    redis: Redis = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Show the streams of jobs, and where their jobs are in each group.

    Of each stream: its length, the jobs that are delayed, those that are dead, and the processes of ours that listen
    for its jobs. Of each group: the jobs that wait, those that run or were left by a consumer that died (or rejected by
    one of Node), those that wait for another attempt, or that a consumer put back before their first as it had no place
    for them (retrying), the seconds that the oldest one has waited for its first, and the consumers that the server has
    seen within a minute (before Redis 7.2, only those that got or renewed a job).

    The exit status is 1 if a stream that is named does not exist, or a key is of another type.
    """
    run(_status(streams or [], limit if limit or json else DEFAULT_ROWS, redis, prefix, json))


async def _status(
    streams: Sequence[str], limit: int | None, urls: Sequence[str] | None, prefix: str, as_json: bool
) -> int:
    found, problems, missing = list[dict[str, Any]](), list[str](), set(streams)
    async with jobs_at(urls, prefix) as jobs:
        for node in jobs.nodes:
            states, total = await _states(jobs, node, streams, limit)
            problems += [f"{at(node)}: {shown(problem)}" for state in states for problem in state.problems]
            missing -= {state.name for state in states}
            if as_json:
                found.append({"server": at(node), "total": total, "streams": [asdict(state) for state in states]})
            else:
                _print(at(node), states, total)
        for name in sorted(missing):
            raise no_such_stream(jobs, name)
    if as_json:
        print_json({"servers": found, "problems": problems})
    else:
        for line in problems:
            typer.echo(line)
    return int(bool(problems))


async def _states(
    jobs: "Jobs", node: "Instance", streams: Sequence[str], limit: int | None
) -> "tuple[list[StreamState], int]":
    """Return the streams of a server that exist, up to ``limit``, and how many there are."""
    from penstock.inspect.jobs import read_streams, stream_names

    names = [*dict.fromkeys(streams)]
    if not streams:
        with progress(f"keys of {at(node)}", await node.ask("DBSIZE")) as advance:
            names = await stream_names(node, jobs.keys, advance)
    states = [each async for each in read_streams(node, jobs.keys, names[:limit]) if each.exists]
    return states, len(names) if not streams else len(states)


def _print(server: str, states: "Sequence[StreamState]", total: int) -> None:
    if not states:
        typer.echo(f"{server}: no streams")
        return
    more = [_more(each) for each in states]
    columns = STREAMS if any(more) else STREAMS[:-1]
    rows = [
        (shown(each.name), each.length, each.delayed, each.dead, each.workers, rest)[: len(columns)]
        for each, rest in zip(states, more, strict=True)
    ]
    print_table(f"{server}: {counted(total, 'stream')}", columns, rows)
    groups = [row for state in states for row in _rows(state)]
    if groups:
        print_table("groups", GROUPS, groups)
    if total > len(states):
        typer.echo(f"{total - len(states):,} more streams: --limit shows more, or name some")


def _rows(state: "StreamState") -> list[tuple[object, ...]]:
    """Return a row for each group of a stream, or one that says that its jobs have none."""
    if state.length and not state.groups:
        return [(shown(state.name), "none yet", state.length, 0, 0, "-", 0)]
    return [_row(state.name, group) for group in state.groups]


def _row(stream: str, group: "GroupState") -> tuple[object, ...]:
    waiting = group.waiting if group.counted else f"over {group.waiting:,}"
    oldest = "-" if group.oldest is None else f"{group.oldest:.0f} s"
    return shown(stream), shown(group.name), waiting, group.running, group.retrying, oldest, group.alive


def _more(state: "StreamState") -> str:
    """Return what few streams have."""
    repeated = f"{state.repeated:,} repeated" if state.repeated else ""
    return "\n".join(filter(None, ["paused" if state.paused else "", repeated]))
