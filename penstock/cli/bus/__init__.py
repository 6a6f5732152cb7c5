"""``penstock bus``: inspect the queues of a bus, and move them between servers."""

import typer

from penstock.cli._group import Group
from penstock.cli.bus import move, queue, status, tail

app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def bus() -> None:
    """Inspect and move the queues of a bus, Penstock's or busmq's, on one or several servers."""


app.command()(status.status)
app.command()(queue.queue)
app.command()(tail.tail)
app.command()(move.move)
