"""``penstock jobs``: inspect and control streams of jobs, Penstock's or hfxbus's."""

import typer

from penstock.cli._group import Group
from penstock.cli.jobs import cancel, list, pause, retry, show, status

app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def jobs() -> None:
    """Inspect and control streams of jobs, Penstock's or hfxbus's, on one or several servers."""


app.command()(status.status)
app.command("list")(list.list_jobs)
app.command()(show.show)
app.command()(retry.retry)
app.command()(cancel.cancel)
app.command()(pause.pause)
app.command()(pause.resume)
