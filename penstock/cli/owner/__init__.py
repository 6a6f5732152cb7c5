"""``penstock owner``: the data keys with which messages of owners are encrypted."""

import typer

from penstock.cli._group import Group
from penstock.cli.owner import forget, rewrap, rotate, secret
from penstock.cli.owner import list as list_

app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def owner() -> None:
    """List, renew and delete the keys with which the messages of each owner are encrypted, or its webhooks signed."""


app.command("list")(list_.list_owners)
app.command()(rotate.rotate)
app.command()(forget.forget)
app.command()(rewrap.rewrap)
app.command()(secret.secret)
