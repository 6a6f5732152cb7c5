"""``penstock queue add``: add tasks."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli._frame import Json, Misused, complain, run
from penstock.cli._text import print_json, shown
from penstock.cli.queue._queues import DEFAULT_URL, Service, TokenAt, Url, parse_json, queue_of

if TYPE_CHECKING:
    from penstock.hqueue import Added, Queue, TaskOptions

MAX_ADDED = 100
"""Tasks in one call."""


def add(
    service: Service,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON, or - for standard input: one value a line.")],
    id: Annotated[
        str | None, typer.Option(metavar="ID", help="Your own id: while its task is kept, it is not added again.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Tasks of one key are done in order.")] = None,
    delay: Annotated[float | None, typer.Option(min=0, metavar="S", help="Seconds until it may be fetched.")] = None,
    ttl: Annotated[float | None, typer.Option(min=0, metavar="S", help="Seconds until it expires.")] = None,
    attempts: Annotated[int | None, typer.Option(min=0, help="Maximum number of attempts; 0: no limit.")] = None,
    reply_to: Annotated[
        str | None, typer.Option(metavar="NAME", help="List that gets the outcome: NS:replies:OWNER/NAME.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Where the outcome is posted, signed.")] = None,
    url: Url = DEFAULT_URL,
    token: TokenAt = None,
    json: Json = False,
) -> None:
    """Add a task, or one for each line of standard input, and print their ids, one a line.

    If it fails or is interrupted, the ids that were printed have been added.
    """
    if id is not None and value == "-":
        raise typer.BadParameter("--id is for one task: leave it out with -")
    given = {"id": id, "key": key, "delay": delay, "ttl": ttl, "attempts": attempts}
    given |= {"reply_to": reply_to, "webhook": webhook}
    options: Any = {name: each for name, each in given.items() if each is not None}
    run(_add(service, value, options, url, token, json))


async def _add(service: str, value: str, options: "TaskOptions", url: str, token: str | None, as_json: bool) -> int:
    async with queue_of(service, url, token) as queue:
        if value != "-":
            added = await queue.add(parse_json(value, "VALUE"), **options)
            if not added.is_new:
                complain(f"task {added.id} has this id already: nothing was added", 0)
            _print(added, as_json)
            return 0
        return await _add_lines(queue, options, as_json)


async def _add_lines(queue: "Queue", options: "TaskOptions", as_json: bool) -> int:
    from penstock.cli.push import messages_of

    count, place = 0, 0
    try:
        async for lines in messages_of(sys.stdin.fileno(), b"\n"):
            for first in range(0, len(lines), MAX_ADDED):
                values = list[Any]()
                for line in lines[first : first + MAX_ADDED]:
                    place += 1
                    if line.strip():
                        values.append(parse_json(line, f"line {place:,}"))
                for added in await queue.add_many(values, **options) if values else ():
                    count += 1
                    _print(added, as_json)
    except Misused:
        complain(f"{count:,} tasks were added to {shown(queue.service)} before this:", 2)
        raise
    return 0


def _print(added: "Added", as_json: bool) -> None:
    if as_json:
        print_json({"taskId": added.id, "index": added.index, "state": added.state})
    else:
        print(added.id, flush=True)
