"""``penstock queue dead``: show the dead tasks of a queue."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli._frame import Json, run
from penstock.cli._text import clock, print_json, print_table, shown
from penstock.cli.queue._queues import DEFAULT_URL, Service, TokenAt, Url, brief, queue_of, status_fields

if TYPE_CHECKING:
    from penstock.hqueue import Queue, Status

DEFAULT_ROWS = 100
PAGE = 100
REASON_WIDTH = 12
ERROR_WIDTH = 22


def dead(
    service: Service,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Maximum number of tasks to show; default: {DEFAULT_ROWS}, with --json all."),
    ] = None,
    url: Url = DEFAULT_URL,
    token: TokenAt = None,
    json: Json = False,
) -> None:
    """Show dead tasks, the oldest first, with reason and error; `penstock queue retry` lets them wait again.

    --json prints one a line.
    """
    run(_dead(service, limit, url, token, json))


async def _dead(service: str, limit: int | None, url: str, token: str | None, as_json: bool) -> int:
    from penstock.hqueue import NoTask

    rows, more = list[tuple[object, ...]](), False
    async with queue_of(service, url, token) as queue:
        async for status in dead_tasks(queue):
            if len(rows) == (limit or (None if as_json else DEFAULT_ROWS)):
                more = True
                break
            with suppress(NoTask):  # a list of tasks has no contents
                status = await queue.status(status.id)
            if as_json:
                print_json(status_fields(status))
            rows.append(_row(status))
    if as_json:
        return 0
    if not rows:
        typer.echo(f"{shown(service)} has no dead tasks")
        return 0
    print_table(f"{shown(service)}: dead tasks", ("task", "attempts", "added (UTC)", "reason", "error"), rows)
    if more:
        typer.echo(f"these are the oldest {len(rows):,}: --limit shows more")
    return 0


async def dead_tasks(queue: "Queue") -> AsyncIterator["Status"]:
    """Yield all dead tasks, the oldest first, without their contents."""
    after = 0
    while page := await queue.statuses("dead", after=after, most=PAGE):
        for status in page:
            yield status
        after = page[-1].index


def _row(status: "Status") -> tuple[object, ...]:
    error = "-" if status.error is None else brief(status.error, ERROR_WIDTH)
    reason = brief(status.reason or "-", REASON_WIDTH)
    return status.id, status.attempt, clock(status.added, "minutes"), reason, error
