"""``penstock queue fetch``: fetch a task, as a worker does."""

import json as json_
from typing import Annotated

import typer

from penstock.cli._frame import Json, complain, run
from penstock.cli._text import clock, print_json, shown
from penstock.cli.queue._queues import DEFAULT_URL, Service, TokenAt, Url, as_fields, queue_of

WORKER = "penstock-cli"
Worker = Annotated[str, typer.Option(metavar="NAME", help="The name of the worker, the same for fetch and ack.")]


def fetch(
    service: Service,
    worker: Worker = WORKER,
    time_to_recover: Annotated[
        float, typer.Option(min=0.001, metavar="S", help="Seconds until another worker gets it, unless acknowledged.")
    ] = 60.0,
    wait: Annotated[float, typer.Option(min=0, max=20, metavar="S", help="Seconds to wait for a task.")] = 0.0,
    url: Url = DEFAULT_URL,
    token: TokenAt = None,
    json: Json = False,
) -> None:
    """Fetch the next task and print its value; `penstock queue ack` ends it.

    A worker that has a task gets the same one again. The exit status is 1 if there is none. With --json print all that
    is known of it.
    """
    run(_fetch(service, worker, time_to_recover, wait, url, token, json))


async def _fetch(
    service: str, worker: str, time_to_recover: float, wait: float, url: str, token: str | None, as_json: bool
) -> int:
    async with queue_of(service, url, token) as queue:
        task = await queue.fetch(worker, time_to_recover=time_to_recover, wait=wait)
    if task is None:
        return complain(f"{shown(service)} has no task for a worker now: --wait S waits for one", 1)
    if as_json:
        found = {"taskId": task.id, "index": task.index, "attempt": task.attempt, "taskToken": task.task_token}
        more = {"leaseEnd": task.lease_end, "key": task.key, "progress": task.last_progress}
        print_json(found | as_fields("value", task.value) | {name: each for name, each in more.items() if each})
        return 0
    until = f"until {clock(task.lease_end)} UTC"
    typer.echo(f"task {task.id} of {shown(service)}, attempt {task.attempt}, {until}", err=True)
    text = f"{len(task.value):,} bytes" if isinstance(task.value, bytes) else json_.dumps(task.value)
    print(text, flush=True)
    return 0
