"""``penstock queue retry``: let dead tasks wait again."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.encoding import counted
from penstock.cli._frame import Failed, Json, Misused, run
from penstock.cli._text import print_json, shown
from penstock.cli.queue._queues import DEFAULT_URL, Service, TokenAt, Url, queue_of
from penstock.cli.queue.dead import dead_tasks

if TYPE_CHECKING:
    from penstock.hqueue import Queue


def retry(
    service: Service,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The task, as `penstock queue dead` shows it.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead tasks of the queue.")] = False,
    url: Url = DEFAULT_URL,
    token: TokenAt = None,
    json: Json = False,
) -> None:
    """Let a dead task, or all of them, wait again, with as many attempts as at first.

    The exit status is 1 if the task is not dead.
    """
    run(_retry(service, id, everything, url, token, json))


async def _retry(service: str, id: str | None, everything: bool, url: str, token: str | None, as_json: bool) -> int:
    if (id is None) != everything:
        raise Misused("expected the id of a task, or --all")
    async with queue_of(service, url, token) as queue:
        many = await _retry_all(queue) if id is None else await _retry_one(queue, id)
    if as_json:
        print_json({"retried": many})
    elif id is None:
        typer.echo(f"waiting again in {shown(service)}: {counted(many, 'task')}")
    else:
        typer.echo(f"task {shown(id)} of {shown(service)} waits again")
    return 0


async def _retry_one(queue: "Queue", id: str) -> int:
    from penstock.hqueue import AnswerError

    try:
        await queue.retry(id)
    except AnswerError as error:
        if error.status == 409:
            raise Failed(f"task {shown(id)} is not dead: {shown(error.detail)}") from None
        raise
    return 1


async def _retry_all(queue: "Queue") -> int:
    """Retry those that are dead now; others may end meanwhile, or be retried by somebody else."""
    from penstock.hqueue import AnswerError

    many = 0
    for status in [status async for status in dead_tasks(queue)]:
        try:
            await queue.retry(status.id)
        except AnswerError as error:
            if error.status not in (404, 409):
                raise
        else:
            many += 1
    return many
