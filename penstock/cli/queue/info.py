"""``penstock queue info``: show how many tasks a queue has."""

import time

import typer

from penstock.cli._frame import Json, run
from penstock.cli._text import age, print_json, print_table, shown
from penstock.cli.queue._queues import DEFAULT_URL, Service, TokenAt, Url, queue_of

MAX_ROWS = 50
"""Maximum number of held tasks in the table."""
NAME_WIDTH = 24


def info(service: Service, url: Url = DEFAULT_URL, token: TokenAt = None, json: Json = False) -> None:
    """Show how many tasks are in which state, and which worker holds which task."""
    run(_info(service, url, token, json))


async def _info(service: str, url: str, token: str | None, as_json: bool) -> int:
    async with queue_of(service, url, token) as queue:
        if as_json:
            print_json((await queue.calls.http("GET", f"/queues/{service}/info")).body)
            return 0
        found = await queue.info()
    counts = {
        "waiting": found.waiting,
        "delayed": found.delayed,
        "blocked": found.blocked,
        "held": found.in_hand,
        "ended": found.ended,
    }
    print_table(f"tasks of {shown(service)}", ("state", "tasks"), [*counts.items()])
    if found.held:
        rows = [
            (each.id, each.index, shown(each.worker)[:NAME_WIDTH], each.attempt, age(each.lease_end - time.time()))
            for each in found.held[:MAX_ROWS]
        ]
        print_table("held", ("task", "index", "worker", "attempt", "lease"), rows)
    if found.in_hand > MAX_ROWS:
        typer.echo(f"{found.in_hand - min(len(found.held), MAX_ROWS):,} more are held: --json shows up to 100")
    oldest = "none waits" if found.oldest is None else f"the oldest waits for {age(found.oldest)}"
    typer.echo(f"last index {found.index:,}; {oldest}")
    return 0
