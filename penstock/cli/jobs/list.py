"""``penstock jobs list``: list the jobs of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.base.encoding import parse_number
from penstock.cli._frame import Failed, Json, Misused, run
from penstock.cli._text import age, clock, print_json, print_table, shown
from penstock.cli.jobs._jobs import DEFAULT_PREFIX, ENTRY, Prefix, Redis, Stream, at, brief, jobs_at, no_such_stream

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.inspect.jobs import Entry, EntryState
    from penstock.jobs import DeadJob, Jobs
    from penstock.jobs.cancelling import Delayed

DEFAULT_MOST: Final = 100
STATES: Final = ("waiting", "running", "retrying", "delayed", "dead")
ENTRIES: Final = ("entry", "job", "sent (UTC)", "group: state")
WAITING: Final = ("entry", "job", "sent (UTC)")
RUNNING: Final = ("entry", "job", "attempt", "idle", "consumer")
RETRYING: Final = ("entry", "job", "attempts", "due (UTC)")
DELAYED: Final = ("job", "due (UTC)", "producer")
DEAD: Final = ("id", "job", "group", "attempts", "died (UTC)", "error")
_AFTER: Final = {ENTRIES: "entry", WAITING: "entry", RUNNING: "entry", RETRYING: "entry", DELAYED: "due", DEAD: "id"}
"""What --after takes, by what is listed."""
Row = tuple[tuple[object, ...], dict[str, Any]]
"""The cells of a row, and what --json prints."""


def list_jobs(
    stream: Stream,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only this group; default: all.")] = None,
    state: Annotated[
        str | None, typer.Option(metavar="|".join(STATES), help="Only jobs in this state; default: all in the stream.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Begin behind this entry, dead job or (of delayed ones) time."),
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, help="Maximum number of jobs to show of each server and group.")
    ] = DEFAULT_MOST,
    redis: Redis = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """List the jobs of a stream, the oldest first.

    Without a state, all that its entries have, and where they are in each group; jobs that all groups have done are
    removed from time to time. waiting: no consumer of the group has read it. running: a consumer has it, or has left it
    when it died; those that one of Node has rejected are shown as running, too. retrying: it waits for another attempt,
    for its limit, or for a consumer with room, as the one that read it had none. delayed: it waits for its time. dead:
    its attempts are used up. ended: it is done, dead or cancelled; `penstock jobs show` says which.

    --json prints one a line. The exit status is 1 if the stream or the group does not exist.
    """
    run(_list(stream, Choice(group, state, after, most, json), redis, prefix))


@dataclass(frozen=True)
class Choice:
    """What is to be listed."""

    group: str | None
    state: str | None
    after: str | None
    most: int
    as_json: bool

    def check(self) -> None:
        """Raise ``Misused``."""
        if self.state not in (None, *STATES):
            raise Misused(f"--state {shown(self.state or '')}: expected {', '.join(STATES[:-1])} or {STATES[-1]}")
        if self.after is None:
            return
        if self.state == "delayed":
            if parse_number(self.after) is None:
                raise Misused(f"--after {shown(self.after)}: expected a time (s since the epoch): due of --json")
        elif not ENTRY.fullmatch(self.after):
            raise Misused(f"--after {shown(self.after)}: expected an entry, e.g. 1700000000000-0")


async def _list(stream: str, choice: Choice, urls: Sequence[str] | None, prefix: str) -> int:
    from penstock.inspect.jobs import read_streams

    choice.check()
    shows_any = False
    async with jobs_at(urls, prefix) as jobs:
        states = [await anext(read_streams(node, jobs.keys, [stream])) for node in jobs.nodes]
        if not any(state.exists for state in states):
            raise no_such_stream(jobs, stream)
        groups = {group.name for state in states for group in state.groups}
        if choice.group is not None and choice.group not in groups and choice.state != "dead":
            known = ", ".join(map(shown, sorted(groups))) or "none"
            raise Failed(f"stream {shown(stream)} has no group {shown(choice.group)}: its groups are {known}")
        for place, state in enumerate(states):
            if state.exists:
                names = [each.name for each in state.groups if choice.group in (None, each.name)]
                shows_any = await _show(jobs, place, stream, names, choice) or shows_any
    if not shows_any and not choice.as_json:
        typer.echo(f"{shown(stream)}: no {choice.state or 'jobs'}{' jobs' if choice.state else ''}")
    return 0


async def _show(jobs: "Jobs", place: int, stream: str, groups: Sequence[str], choice: Choice) -> bool:
    """Show the jobs of one server; return whether there are any."""
    from penstock.inspect.jobs import delayed_in

    node, listed = jobs.nodes[place], list[tuple[str, tuple[str, ...], list[Row]]]()
    if choice.state == "dead":
        listed.append(("dead", DEAD, [_dead_row(each) for each in await _dead(jobs, place, stream, choice)]))
    elif choice.state == "delayed":
        found = await delayed_in(node, jobs.keys, stream, parse_number(choice.after), choice.most)
        listed.append(("delayed", DELAYED, [_delayed_row(each) for each in found]))
    elif choice.state is None:
        listed.append(("jobs", ENTRIES, [_entry_row(each) for each in await _entries(jobs, node, stream, choice)]))
    else:
        for group in groups:
            title = f"{choice.state} in {shown(group)}"
            listed.append((title, *await _in_group(jobs, node, stream, group, choice)))
    for title, columns, rows in listed:
        if choice.as_json:
            for _, fields in rows:
                print_json({"server": at(node), **fields})
        elif rows:
            print_table(f"{shown(stream)} on {at(node)}: {title}", columns, [row for row, _ in rows])
            if len(rows) == choice.most:
                typer.echo(f"these are {choice.most:,}: --after {rows[-1][1][_AFTER[columns]]} shows those behind")
    return any(rows for *_, rows in listed)


async def _entries(jobs: "Jobs", node: "Instance", stream: str, choice: Choice) -> "list[EntryState]":
    from penstock.inspect.jobs import entries_at
    from penstock.jobs.cancelling import pages

    found: list[Entry] = await anext(pages(node, jobs.keys.stream(stream), choice.after or "-", choice.most), [])
    return await entries_at(node, jobs.keys, stream, found, choice.group)


async def _in_group(
    jobs: "Jobs", node: "Instance", stream: str, group: str, choice: Choice
) -> tuple[tuple[str, ...], list[Row]]:
    from penstock.inspect.jobs import jobs_in

    found = await jobs_in(node, jobs.keys, stream, group, choice.state or "", choice.after or "", choice.most)
    rows = list[Row]()
    for each in found:
        (stage,) = each.stages
        first = each.entry, shown(each.job)
        fields = {"state": stage.state, "group": group, "entry": each.entry, "job": each.job, "sent": each.added}
        if stage.state == "waiting":
            rows.append(((*first, clock(each.added)), fields))
            continue
        fields |= {"attempts": stage.attempts, "consumer": stage.consumer, "idle": stage.idle}
        if stage.state == "running":
            rows.append(((*first, stage.attempts, age(stage.idle), shown(stage.consumer or "")), fields))
        else:
            rows.append(((*first, stage.attempts, due_at(stage.due)), {**fields, "due": finite(stage.due)}))
    return {"waiting": WAITING, "running": RUNNING, "retrying": RETRYING}[choice.state or ""], rows


async def _dead(jobs: "Jobs", place: int, stream: str, choice: Choice) -> "list[DeadJob]":
    from penstock.jobs.dead import dead_jobs

    found = list["DeadJob"]()
    async for dead in dead_jobs(jobs.servers, place, stream, group=choice.group, after=choice.after or "-"):
        found.append(dead)
        if len(found) == choice.most:
            break
    return found


def _entry_row(state: "EntryState") -> Row:
    where = "\n".join(f"{shown(each.group)}: {each.state}" for each in state.stages)
    fields = {"entry": state.entry, "job": state.job, "sent": state.added}
    states = {each.group: each.state for each in state.stages}
    return (state.entry, shown(state.job), clock(state.added), where), {**fields, "groups": states}


def _delayed_row(each: "Delayed") -> Row:
    from penstock.jobs.cancelling import named

    producer = named(each.fields).get("prd", "")
    fields = {"state": "delayed", "job": each.job, "due": each.due, "producer": producer}
    return (shown(each.job), clock(each.due), shown(producer)), fields


def _dead_row(dead: "DeadJob") -> Row:
    error = dead.errors[-1].get("error") if dead.errors else None
    fields = {"state": "dead", "id": dead.id, "job": dead.job, "group": dead.group, "entry": dead.entry}
    more = {"attempts": dead.attempts, "at": dead.at, "error": error}
    text = "-" if error is None else brief(error)
    return (dead.id, shown(dead.job), shown(dead.group), dead.attempts, clock(dead.at), text), fields | more


def finite(due: float | None) -> float | None:
    """Return when a job is tried again; None if that depends on others."""
    return None if due is None or due == float("inf") else due


def due_at(due: float | None) -> str:
    """Return when a job is tried again, for a table."""
    return "when its key is free" if finite(due) is None else clock(due)
