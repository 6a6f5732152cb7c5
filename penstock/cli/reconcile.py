"""``penstock reconcile``: account for every accepted message on each branch of a fan-out."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.base.encoding import counted
from penstock.cli._archive import ArchiveDirectory, Master, Memory, require_archive, retry_reads, spark_session
from penstock.cli._frame import DEFAULT_URL, Failed, Json, RedisUrl, complain, connected, run
from penstock.cli._selection import require_events
from penstock.cli._text import clock, print_json, print_table, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.accounting.fanout import Finding
    from penstock.spark.reconciliation import Open, Reconciliation

MAX_FINDINGS: Final = 100
"""Findings that are printed; ``--json`` has all."""
MAX_OPEN: Final = 10
"""Messages in flight that are printed."""
ALWAYS_SHOWN: Final = ("accepted", "done", "late", "dead", "expired", "in flight", "waiting", "missing", "doubled")
"""Columns that are shown even if all their cells are 0."""


def reconcile(
    archive: ArchiveDirectory,
    namespaces: Annotated[
        list[str] | None,
        typer.Argument(metavar="NS", help="Namespaces of mdispatch; default: all."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Look up each message in Redis whose end is not archived.")
    ] = False,
    redis: RedisUrl = DEFAULT_URL,
    master: Master = "local[2]",
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Account for every message on every branch of a fan-out.

    Compares the archive of a pipeline with the counters in Redis. Exit status 0 only if all messages are accounted for;
    otherwise it names the hop and the message: missing, doubled, not archived yet.
    """
    run(
        run_reconcile(archive, namespaces or [], partial(spark_session, master, memory), redis, live=live, as_json=json)
    )


async def run_reconcile(
    archive: str,
    namespaces: list[str],
    spark_session: "Callable[[], AbstractContextManager[SparkSession]]",
    url: str,
    *,
    live: bool,
    as_json: bool,
    **more: Any,
) -> int:
    """Reconcile, print the result and return the exit status."""
    from penstock.base.keys import Keys
    from penstock.spark.reconciliation import reconcile

    async with connected(url) as redis:
        for name in namespaces:
            await require_events(redis, Keys(name))
        require_archive(archive)
        with _step_display() as say:
            say("starting Spark")
            with spark_session() as spark:
                for reading in retry_reads():
                    with reading:
                        found = await reconcile(redis, spark, archive, namespaces, live=live, say=say, **more)
    if not found.legs and not found.findings:
        raise Failed("no mdispatch has registered on this server: name another with --redis URL or REDIS")
    if as_json:
        print_json(_as_json(found))
    else:
        _print(found)
    return int(not found.holds)


@contextmanager
def _step_display() -> Iterator[Callable[[str], object]]:
    """Yield a function that takes the name of each step; a terminal shows it while it lasts."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda step: status.update(escape(step))


def _print(found: "Reconciliation") -> None:
    rows = found.rows()
    columns = [name for name in rows[0] if name in ALWAYS_SHOWN or any(row[name] for row in rows)] if rows else []
    legs = zip(found.legs, rows, strict=True)
    cells = [[shown(leg.hop), *(row[name] for name in columns)] for leg, row in legs]
    print_table(f"Messages by leg, as of {clock(found.books.at)} UTC", ("leg", *columns), cells)
    if found.open:
        typer.echo(f"under way: {len(found.open):,}, the oldest first")
        for each in found.open[:MAX_OPEN]:
            typer.echo(f"  {_open(each)}")
        _and_more(len(found.open) - MAX_OPEN, err=False)
    for finding in found.findings[:MAX_FINDINGS]:
        complain(_line(finding), 1)
    _and_more(len(found.findings) - MAX_FINDINGS, err=True)
    if found.holds:
        messages = sum(row["accepted"] for row in rows)
        typer.echo(f"reconciled: {counted(messages, 'message')} by {counted(found.events, 'event')}, all accounted for")


def _and_more(number: int, *, err: bool) -> None:
    if number > 0:
        typer.echo(f"{'penstock:' if err else ' '} and {number:,} more: --json has all", err=err)


def _open(each: "Open") -> str:
    place = f"{shown(each.queue)} of {shown(each.namespace)}"
    return f"id {shown(each.id)} (xid {shown(each.xid)}) in {place}: {shown(each.event)} {clock(each.at)} UTC"


def _line(finding: "Finding") -> str:
    names = ", ".join(f"{kind} {name}" for kind, name in (("id", finding.id), ("xid", finding.xid)) if name)
    return ": ".join(filter(None, (finding.where, names, finding.words)))


def _as_json(found: "Reconciliation") -> dict[str, Any]:
    legs = [
        {"hop": leg.hop, "list": leg.list, "namespaces": [book.namespace for book in leg.consumers], **row}
        for leg, row in zip(found.legs, found.rows(), strict=True)
    ]
    return {
        "holds": found.holds,
        "at": found.books.at,
        "events": found.events,
        "legs": legs,
        "findings": [asdict(finding) for finding in found.findings],
        "open": [asdict(each) for each in found.open],
    }
