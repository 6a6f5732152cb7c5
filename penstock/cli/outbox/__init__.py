"""``penstock outbox``: inspect and change the store of an outbox."""

import typer

from penstock.cli._group import Group
from penstock.cli.outbox import changes, messages, status

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def outbox() -> None:
    """Inspect an outbox in its datadir, also while it runs; change it while it does not."""


app.command()(status.status)
app.command()(status.keys)
app.command()(status.subscribers)
app.command()(messages.incoming)
app.command()(messages.outgoing)
app.command()(messages.dead)
app.command()(changes.requeue)
app.command()(changes.remove)
app.command()(changes.trust)
app.command()(changes.purge)
app.command()(changes.unlock)
app.command()(changes.compact)
app.command()(changes.salvage)
