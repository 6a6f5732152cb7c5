"""``penstock token``: who may use a service over HTTP."""

import typer

from penstock.cli._group import Group
from penstock.cli.token import add, revoke
from penstock.cli.token import list as list_

app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def token() -> None:
    """Add, list and revoke the tokens of programs that use a service over HTTP (setting `tokens`)."""


app.command()(add.add)
app.command("list")(list_.list_tokens)
app.command()(revoke.revoke)
