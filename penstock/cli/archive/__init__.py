"""``penstock archive``: read the archive of a pipeline with other programs."""

import typer

from penstock.cli._group import Group
from penstock.cli.archive import export

app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def archive() -> None:
    """Hand the archive of a pipeline to other programs, without Spark and Java."""


app.command()(export.export)
