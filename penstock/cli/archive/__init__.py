"""``penstock archive``: read the archive of a pipeline with other programs."""

import typer

from penstock.cli._group import Group
from penstock.cli.archive import export, files

app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def archive() -> None:
    """Read the archive of a pipeline with other programs: list its files, or export it. Without Spark and Java."""


app.command("files")(files.list_files)
app.command()(export.export)
