"""What the servers have of one job."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.base.encoding import decoded, encoded
from penstock.cli._progress import progress
from penstock.cli.jobs._jobs import ENTRY, as_fields, at

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.inspect.jobs import EntryState
    from penstock.jobs import Completion, DeadJob, Jobs
    from penstock.jobs.cancelling import Delayed

MAX_SHOWN: Final = 1_000
"""Bytes of a value that a table shows."""


@dataclass
class Found:
    """What the servers have of a job."""

    id: str
    entries: list[tuple[str, "EntryState", dict[str, Any]]] = field(default_factory=list)
    """Server, entry, and the errors of its attempts by group."""
    delayed: list[tuple[str, "Delayed"]] = field(default_factory=list)
    now: float = 0.0
    """The time of the server of the last one that is delayed."""
    dead: "list[tuple[str, DeadJob]]" = field(default_factory=list)
    completions: "list[Completion]" = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    progress: dict[str, Any] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """Return whether there is anything."""
        return bool(self.entries or self.delayed or self.dead or self.completions or self.values)


async def find(jobs: "Jobs", stream: str, job: str) -> Found:
    """Return what the servers have of a job, by its id, its entry or that of a dead job; without its values."""
    from penstock.inspect.jobs import completions_of, entry_at
    from penstock.jobs.cancelling import delayed_of, entries_of, named
    from penstock.jobs.dead import dead_jobs
    from penstock.jobs.repeating import time_at

    found, is_entry = Found(job), False
    if ENTRY.fullmatch(job):
        for node in jobs.nodes:
            fields = await entry_at(node, jobs.keys, stream, job)
            if fields is not None:
                found.id, is_entry = named(fields).get("job", ""), True
                await _add_entry(jobs, node, stream, job, fields, found)
    for place, node in enumerate(jobs.nodes):
        if delayed := await delayed_of(jobs.servers, node, stream, found.id):
            found.delayed += [(at(node), each) for each in delayed]
            found.now = await time_at(node)
        with progress(f"jobs of {at(node)}", await node.command("XLEN", encoded(jobs.keys.stream(stream)))) as advance:
            entries = [] if is_entry else await entries_of(jobs.servers, node, stream, found.id, advance)
        for entry in entries:
            await _add_entry(jobs, node, stream, entry, await entry_at(node, jobs.keys, stream, entry), found)
        async for dead in dead_jobs(jobs.servers, place, stream):
            if job in (dead.entry, dead.id):
                found.id = dead.job
            if found.id == dead.job:
                found.dead.append((at(node), dead))
        found.completions += await completions_of(node, jobs.keys, stream, found.id)
    return found


async def _add_entry(
    jobs: "Jobs", node: "Instance", stream: str, entry: str, fields: list[str] | None, found: Found
) -> None:
    from penstock.inspect.jobs import entries_at, errors_of

    if fields is None:
        return
    (state,) = await entries_at(node, jobs.keys, stream, [(entry, fields)])
    errors = dict[str, Any]()
    for stage in state.stages:
        known = await errors_of(node, jobs.keys, stream, stage.group, entry)
        if known:
            errors[stage.group] = json.loads(decoded(known))
    found.entries.append((at(node), state, errors))


async def add_values(jobs: "Jobs", found: Found, *, contents: bool, full: bool, scan: bool) -> None:
    """Add the sizes of the values of a job, or these themselves."""
    from penstock.inspect.jobs import value_keys
    from penstock.jobs.dead import keys_in

    node = jobs.node(found.id)
    fields = [state.fields for _, state, _ in found.entries] + [each.fields for _, each in found.delayed]
    names = dict.fromkeys(key for each in fields for key in keys_in(each))
    names |= dict.fromkeys(key for _, dead in found.dead for key in (*keys_in(dead.fields), *dead.values))
    if scan:
        with progress(f"keys of {at(node)}", await node.ask("DBSIZE")) as advance:
            names |= dict.fromkeys(await value_keys(node, jobs.keys, found.id, advance))
    groups = {each.group for each in found.completions} | {dead.group for _, dead in found.dead}
    groups |= {stage.group for _, state, _ in found.entries for stage in state.stages}
    for group in sorted(groups):
        names.pop(f"progress:{group}", None)
        known = await node.command("GET", encoded(jobs.keys.payload(found.id, f"progress:{group}")))
        if known is not None:
            found.progress[group] = next(iter(as_fields(known).values()))
    for name in names:
        key = encoded(jobs.keys.payload(found.id, name))
        size, left = await node.command("STRLEN", key), await node.command("PTTL", key)
        value: dict[str, Any] = {"key": name, "bytes": None if left == -2 else size}
        value["ttl"] = left / 1000 if left >= 0 else None
        if contents and left != -2:
            value["content"] = await node.command("GETRANGE", key, 0, -1 if full else MAX_SHOWN - 1)
        found.values.append(value)
