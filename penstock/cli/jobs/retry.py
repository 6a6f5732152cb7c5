"""``penstock jobs retry``: send dead jobs again."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.encoding import encoded
from penstock.cli._frame import Failed, Json, Misused, complain, run
from penstock.cli._progress import progress
from penstock.cli._text import print_json, shown
from penstock.cli.jobs._jobs import DEFAULT_PREFIX, Prefix, Redis, Stream, at, jobs_at, servers_of

if TYPE_CHECKING:
    from penstock.jobs import Jobs


def retry(
    stream: Stream,
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB|ID]", help="The job, or its id as `penstock jobs list --state dead` shows it."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead jobs of the stream.")] = False,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only those that died in this group.")] = None,
    redis: Redis = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Send dead jobs again, each for the group that it died in, with as many attempts as at first.

    A job keeps its id, its key and its values: those that are gone are set again, and all live for a week at least. It
    goes to the end of its stream. Other groups of ours pass over it, and so do groups of Node that have read all that
    was sent before; one of Node that lags does the job again.

    Producers hear of its completion again, those that have waited for it have heard of the error. The exit status is 1
    if a job is not dead.
    """
    run(_retry(stream, job, everything, group, redis, prefix, json))


async def _retry(
    stream: str, job: str | None, everything: bool, group: str | None, urls: Sequence[str] | None, prefix: str,
    as_json: bool,
) -> int:  # fmt: skip
    if (job is None) != everything:
        raise Misused("expected a job, or --all")
    async with jobs_at(urls, prefix) as jobs:
        retried = [each async for each in _retried(jobs, stream, job, group)]
        if job is not None and not retried:
            where = f"{servers_of(jobs, 'has', 'have')} no dead job {shown(job)} of {shown(stream)}"
            raise Failed(f"{where}: `penstock jobs list {shown(stream)} --state dead` lists them")
    if as_json:
        print_json({"stream": stream, "retried": retried})
        return 0
    if job is None:
        typer.echo(f"{len(retried):,} dead jobs of {shown(stream)} were sent again")
    for each in retried:
        if job is not None:
            typer.echo(f"{shown(each['job'])} of {shown(stream)} was sent again for {shown(each['group'])}")
        if each["missing"]:
            complain(f"{each['job']}: values are gone for good: {', '.join(each['missing'])}", 0)
    return 0


async def _retried(jobs: "Jobs", stream: str, job: str | None, group: str | None) -> AsyncIterator[dict[str, Any]]:
    """Send jobs again that are dead by now, and yield them; they may die again meanwhile."""
    from penstock.jobs.dead import dead_jobs, last_dead

    for place, node in enumerate(jobs.nodes):
        if not (last := await last_dead(jobs.servers, place, stream)):
            continue
        with progress(
            f"dead jobs of {at(node)}", await node.command("XLEN", encoded(jobs.keys.dead(stream)))
        ) as advance:
            async for dead in dead_jobs(jobs.servers, place, stream, group=group, until=last):
                advance(1)
                if job in (None, dead.job, dead.id) and (found := await jobs.retry(dead)):
                    yield {"job": dead.job, "group": dead.group, **found._asdict()}
