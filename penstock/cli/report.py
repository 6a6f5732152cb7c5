"""``penstock report``: report on the messages of an archive, as tables, JSON and a page with plots."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli._archive import (
    ArchiveDirectory,
    Master,
    Memory,
    Since,
    Until,
    parse_time,
    require_archive,
    retry_reads,
    spark_session,
)
from penstock.cli._frame import Failed, Json, Misused, run
from penstock.cli._text import clock, print_json, print_table, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.report import Report
    from penstock.spark.tables import Table


@dataclass(frozen=True)
class ReportRequest:
    """The scope of the report; None for ``namespace`` means all."""

    archive: str
    namespace: str | None
    since: datetime | None
    until: datetime | None

    @property
    def namespaces(self) -> Sequence[str]:
        return () if self.namespace is None else (self.namespace,)


def report(
    archive: ArchiveDirectory,
    namespace: Annotated[str | None, typer.Argument(metavar="NS", help="The namespace of an mdispatch.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Report on all namespaces of the archive and compare them.")
    ] = False,
    since: Since = None,
    until: Until = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write an HTML page with plots, too.")] = None,
    master: Master = "local[2]",
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Report throughput, response times and failures of messages.

    Shows throughput, response times, time-outs, dead letters, backlog and the slowest messages, from the archive of a
    pipeline. The HTML page is one file that needs no network.
    """
    run(_report(namespace, everything, archive, since, until, html, master, memory, json))


async def _report(
    namespace: str | None,
    everything: bool,
    archive: str,
    since: str | None,
    until: str | None,
    html: str | None,
    master: str,
    memory: str,
    as_json: bool,
) -> int:
    if (namespace is not None) == everything:
        raise Misused("expected the name of a namespace, or --all for all of the archive" + ", not both" * everything)
    request = ReportRequest(archive, namespace, parse_time(since, "since"), parse_time(until, "until"))
    if request.since and request.until and request.since >= request.until:
        raise Misused("--since is not before --until: there is nothing between them")
    return make_report(lambda: spark_session(master, memory), request, html, as_json)


def make_report(
    session: "Callable[[], AbstractContextManager[SparkSession]]",
    request: ReportRequest,
    html: str | None,
    as_json: bool,
) -> int:
    """Print the report; enter ``session`` once the page is known to be writable. Raise ``Failed`` without events."""
    require_archive(request.archive)
    with nullcontext() if html is None else replacing(html) as write:
        with session() as spark:
            for reading in retry_reads():
                with reading:
                    found = _made(spark, request)
        if write:
            from penstock.spark.page import page

            write(page(found))
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)
    return 0


@contextmanager
def replacing(file: str) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes the new text of ``file``, which is replaced at the end of the block, or not at all.

    Raise ``Failed`` at once if it cannot be written.
    """
    path = Path(file).resolve()
    if path.exists() and not path.is_file():
        raise Failed(f"{file} is not a file: name another one with --html")
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        opened = new.open("x", encoding="utf-8")
    except OSError as error:
        raise Failed(f"{file} cannot be written: {error.strerror}; name another file with --html") from error
    try:
        with opened:
            yield opened.write
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _made(spark: "SparkSession", request: ReportRequest) -> "Report":
    from penstock.spark.report import coverage, report

    found = report(spark, request.archive, request.namespaces, request.since, request.until)
    if found:
        return found
    there = [
        f"{shown(each.namespace)} has {each.events:,} from {clock(each.first)} to {clock(each.last)}"
        for each in coverage(spark, request.archive)
    ]
    whose = "" if request.namespace is None else f" of {shown(request.namespace)}"
    limits = {"since": request.since, "until": request.until}
    when = "".join(f" {name} {clock(limit.timestamp())}" for name, limit in limits.items() if limit)
    has = "it has (UTC)" if there else "it has none at all yet"
    raise Failed("\n  ".join([f"{shown(request.archive)} has no events{whose}{when}: {has}", *there]))


def _print(found: "Report") -> None:
    """Print the longest table first, so that the most important ones are visible at the end."""
    from penstock.spark import tables

    between = f"{clock(found.first)} to {clock(found.last)} UTC"
    for section in found.sections:
        for table in (
            tables.over_time(section, found, *tables.KINDS, *(tables.spent("done") if section.times else ()), "open"),
            tables.slowest(section),
            tables.histogram(section),
            tables.dead(section),
            tables.times(section),
            tables.events(section, found),
        ):
            _print_table(table, f"{section.namespace}: {table.title}")
        typer.echo(f"{shown(section.namespace)}: {tables.backlog(section)}; {between}\n")
    if len(found.sections) > 1:
        compared = tables.compared(found)
        _print_table(compared, compared.title)


def _print_table(table: "Table", title: str) -> None:
    rows = [[cell if isinstance(cell, int) else shown(cell) for cell in row] for row in table.rows]
    print_table(shown(title), table.columns, rows)
