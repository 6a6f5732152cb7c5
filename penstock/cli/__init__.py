"""The command line, one command a file; commands import what they need when they run, so that help is fast."""

from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import (
    acl,
    archive,
    audit,
    bury,
    bus,
    chaos,
    clear,
    dead,
    discover,
    done,
    explain,
    jobs,
    lint,
    map,
    outbox,
    owner,
    plan,
    pull,
    push,
    queue,
    reconcile,
    redis,
    register,
    replay,
    report,
    revive,
    run,
    shovel,
    sql,
    status,
    stop,
    test,
    token,
    touch,
    trace,
    up,
)
from penstock.cli._group import Group

app = typer.Typer(
    name="penstock",
    cls=Group,
    help="Inspect and control Penstock: small Redis services that move messages without losing any.",
    epilog="Exit status: 0 OK, 1 a finding or a failure, 2 a usage error.",
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Inspect and control Penstock: small Redis services that move messages without losing any."""


app.command()(status.status)
app.command()(push.push)
app.command()(pull.pull)
app.command()(shovel.shovel)
app.command()(stop.stop)
app.command()(lint.lint)
app.command()(acl.acl)
app.command("map")(map.draw)
app.command("test")(test.run_tests)
app.command("plan")(plan.plan)
app.command("apply")(plan.apply)
app.command()(audit.audit)
app.command()(explain.explain)
app.command()(trace.trace)
app.command()(touch.touch)
app.command()(done.done)
app.command()(dead.dead)
app.command()(revive.revive)
app.command()(bury.bury)
app.command()(clear.clear)
app.command()(reconcile.reconcile)
app.command()(replay.replay)
app.command()(report.report)
app.command()(sql.sql)
app.command()(chaos.chaos)
app.command("run")(run.run)
app.command()(up.up)
app.command()(register.register)
app.command()(discover.discover)
app.add_typer(archive.app, name="archive")
app.add_typer(bus.app, name="bus")
app.add_typer(jobs.app, name="jobs")
app.add_typer(outbox.app, name="outbox")
app.add_typer(token.app, name="token")
app.add_typer(queue.app, name="queue")
app.add_typer(owner.app, name="owner")
app.command(context_settings={"allow_interspersed_args": False})(redis.redis)
