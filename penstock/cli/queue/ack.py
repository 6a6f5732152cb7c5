"""``penstock queue ack``: end the task that a worker has fetched."""

from typing import Annotated, Any

import typer

from penstock.cli._frame import Json, Misused, run
from penstock.cli._text import print_json, shown
from penstock.cli.queue._queues import DEFAULT_URL, Service, TokenAt, Url, parse_json, queue_of
from penstock.cli.queue.fetch import WORKER, Worker


def ack(
    service: Service,
    result: Annotated[str, typer.Argument(metavar="[RESULT]", help="The result, JSON.")] = "null",
    worker: Worker = WORKER,
    task_token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="The attempt, as `fetch --json` shows it; default: the worker's last task."),
    ] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The attempt has failed: JSON, or a text; no result.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry/--no-retry", help="After --error: try it again later.")] = True,
    delay: Annotated[float | None, typer.Option(min=0, metavar="S", help="Seconds until the next attempt.")] = None,
    url: Url = DEFAULT_URL,
    token: TokenAt = None,
    json: Json = False,
) -> None:
    """End the task that a worker has fetched, with a result, or with --error.

    The exit status is 1 if its lease has ended: then another worker may have it.
    """
    run(_ack(service, result, worker, task_token, error, retry, delay, url, token, json))


async def _ack(
    service: str,
    result: str,
    worker: str,
    task_token: str | None,
    error: str | None,
    retry: bool,
    delay: float | None,
    url: str,
    token: str | None,
    as_json: bool,
) -> int:
    from penstock.hqueue.values import as_json as packed_json

    if error is None and (delay is not None or not retry):
        raise Misused("--delay and --no-retry belong to --error")
    if error is not None and result != "null":
        raise Misused("a task has one outcome: RESULT or --error")
    body: dict[str, Any] = {"workerId": worker} if task_token is None else {"taskToken": task_token}
    if error is None:
        body["result"] = parse_json(result, "RESULT")
    else:
        body |= {"error": _error(error)} | ({} if retry else {"retry": False})
        body |= {} if delay is None else {"delay": delay}
    async with queue_of(service, url, token) as queue:
        answer = await queue.calls.post("/ack", packed_json(body), repeatable=False)
    if as_json:
        print_json(answer.body)
    else:
        typer.echo(f"the task of {shown(service)} is {shown(answer.body['state'])}")
    return 0


def _error(text: str) -> Any:
    """Return the JSON that ``text`` is, or an error with this message."""
    try:
        found = parse_json(text, "--error")
    except Misused:
        return {"type": "Error", "message": text}
    return found if isinstance(found, dict) else {"type": "Error", "message": text}
