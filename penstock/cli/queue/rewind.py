"""``penstock queue rewind``: let tasks that have ended wait again."""

from typing import Annotated

import typer

from penstock.base.encoding import counted
from penstock.cli._frame import Json, run
from penstock.cli._text import print_json, shown
from penstock.cli.queue._queues import DEFAULT_URL, Service, TokenAt, Url, queue_of


def rewind(
    service: Service,
    last: Annotated[int, typer.Argument(min=0, metavar="INDEX", help="The last task that stays; 0: none does.")],
    url: Url = DEFAULT_URL,
    token: TokenAt = None,
    json: Json = False,
) -> None:
    """Let all tasks after INDEX that are done or dead, and still kept, wait again."""
    run(_rewind(service, last, url, token, json))


async def _rewind(service: str, last: int, url: str, token: str | None, as_json: bool) -> int:
    async with queue_of(service, url, token) as queue:
        many = await queue.rewind(last)
    if as_json:
        print_json({"rewound": many})
    else:
        typer.echo(f"waiting again in {shown(service)}: {counted(many, 'task')}")
    return 0
