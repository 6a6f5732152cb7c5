"""``penstock jobs cancel``: cancel a job."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from penstock.base.encoding import encoded
from penstock.cli._frame import Failed, Json, run
from penstock.cli._progress import progress
from penstock.cli._text import print_json, shown
from penstock.cli.jobs._jobs import (
    DEFAULT_PREFIX,
    ENTRY,
    Job,
    Prefix,
    Redis,
    Routes,
    Stream,
    at,
    jobs_at,
    no_such_job,
    nodes_with_entry,
)

if TYPE_CHECKING:
    from penstock.jobs import Jobs


def cancel(
    stream: Stream,
    job: Job,
    redis: Redis = None,
    route: Routes = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Cancel a job for all groups that have not done it, also one that waits for its time.

    The job is removed from its stream, its producer hears of the error CANCELLED from each of these groups, and what a
    consumer that runs it returns does not count. Consumers of Node finish it. To find a job by its id, the whole stream
    is read. The exit status is 1 if it does not exist, or all groups have done it.
    """
    run(_cancel(stream, job, redis, route, prefix, json))


async def _cancel(
    stream: str, job: str, urls: Sequence[str] | None, routes: Sequence[str] | None, prefix: str, as_json: bool
) -> int:
    async with jobs_at(urls, prefix, routes) as jobs:
        groups = await _cancel_one(jobs, stream, job)
        if groups is None:
            raise no_such_job(jobs, stream, job)
    if as_json:
        print_json({"stream": stream, "job": job, "cancelled": groups})
    elif groups:
        typer.echo(f"{shown(job)} of {shown(stream)} is cancelled for {', '.join(map(shown, groups))}")
    else:
        typer.echo(f"{shown(job)} of {shown(stream)} is removed: no group had still to do it")
    return int(not groups)


async def _cancel_one(jobs: "Jobs", stream: str, job: str) -> list[str] | None:
    """Return the groups for which a job was cancelled; None if it does not exist."""
    from penstock.jobs.cancelling import cancel, cancel_job

    if ENTRY.fullmatch(job) and (nodes := await nodes_with_entry(jobs, stream, job)):
        if len(nodes) > 1:
            where = " and ".join(map(at, nodes))
            raise Failed(f"{where} have an entry {job} each: name the job, or one server with --redis")
        return await cancel(jobs.servers, nodes[0], stream, job)
    found = list[list[str]]()
    for node in jobs.nodes:
        with progress(f"jobs of {at(node)}", await node.command("XLEN", encoded(jobs.keys.stream(stream)))) as advance:
            groups = await cancel_job(jobs.servers, node, stream, job, advance)
        if groups is not None:
            found.append(groups)
    return [*dict.fromkeys(group for groups in found for group in groups)] if found else None
