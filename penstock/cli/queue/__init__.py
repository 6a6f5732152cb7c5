"""``penstock queue``: the queues of hqueue, over HTTP."""

import typer

from penstock.cli._group import Group
from penstock.cli.queue import ack, add, dead, fetch, info, retry, rewind, tail

app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def queue() -> None:
    """Add, fetch and acknowledge tasks of hqueue over HTTP, and look after its queues."""


app.command()(add.add)
app.command()(fetch.fetch)
app.command()(ack.ack)
app.command()(info.info)
app.command()(tail.tail)
app.command()(rewind.rewind)
app.command()(dead.dead)
app.command()(retry.retry)
