"""``make bench``: measure the services and their references in one run; print a table and write JSON."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import archive, figures, jobs, large, library, outbox, reading, replies, tables, tracking, transport
from bench.figures import KIB, MIB, Figure
from bench.kept import KEPT, PAGE, as_row, fallen, fallen_table, filled, keep, kept, machine, short
from bench.peers.command import HELP
from bench.peers.command import app as peers
from bench.queue import plan as queue
from bench.testbed import Testbed
from bench.web import plan as web
from penstock.spark.session import what_is_missing
from penstock.testing.server import EmbeddedServer

Benchmark = Callable[[Testbed], Figure | list[Figure]]


class Part(StrEnum):
    MPUSH = "mpush"
    TRACKING = "tracking"
    VPUSH = "vpush"
    LIBRARY = "library"
    PIPELINE = "pipeline"
    WEB = "web"
    HQUEUE = "hqueue"
    JOBS = "jobs"
    OUTBOX = "outbox"


def main(
    parts: Annotated[list[Part] | None, typer.Argument(help="Groups of figures to measure. Default: all.")] = None,
    json_file: Annotated[Path, typer.Option("--json", help="File to write the figures to.")] = Path("bench.json"),
    quick: Annotated[
        bool, typer.Option(help="A tenth of the messages and fewer rounds, to try the benchmark.")
    ] = False,
    keeps: Annotated[
        bool, typer.Option("--keep", help="Keep the figures in docs/performance.json, and on the page beside it.")
    ] = False,
) -> None:
    """Measure all figures, name what fell by more than a tenth since a commit kept it.

    Exit 1 if one misses its limit or fails.

    To compare with other systems: ``peers --help``.
    """
    groups = {
        Part.MPUSH: _mpush(quick),
        Part.TRACKING: _tracking(quick),
        Part.VPUSH: _vpush(quick),
        Part.LIBRARY: library.plan(quick),
        Part.PIPELINE: _pipeline(quick),
        Part.WEB: web.plan(quick),
        Part.HQUEUE: queue.plan(quick),
        Part.JOBS: jobs.plan(quick),
        Part.OUTBOX: outbox.plan(quick),
    }
    plan = [(part, benchmark) for part in parts or Part for benchmark in groups[part]]
    measured, failed = dict[str, list[Figure]](), 0
    with Progress(disable=not sys.stderr.isatty(), console=Console(stderr=True)) as progress:
        for part, benchmark in progress.track(plan, description="measuring"):
            try:
                with EmbeddedServer() as server:
                    result = benchmark(Testbed(server))
            except Exception:  # noqa: BLE001  # the others may take half an hour
                progress.console.print_exception()
                failed += 1
                continue
            several = result if isinstance(result, list) else [result]
            measured.setdefault(part, []).extend(several)
            for figure in several:
                found = f"{short(figure.median)} {figure.unit}" if figure.samples else "not measured"
                progress.console.print(f"{figure.name}: {found}", highlight=False, soft_wrap=True)
    results = [figure for figures in measured.values() for figure in figures]
    former = kept()
    falls = fallen(results, former)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(_table(results))
    console.print(fallen_table(falls) if falls else _nothing_fell(results, former))
    rows = [as_row(figure) for figure in results]
    fell = [{"figure": figure.name, "before": before["median"], "commit": before["commit"]} for figure, before in falls]
    json_file.write_text(json.dumps({"machine": machine(), "figures": rows, "fell": fell}, indent=2) + "\n")
    if keeps:
        keep(measured)
        PAGE.write_text(filled(PAGE.read_text(), kept().values()))
    raise typer.Exit(1 if failed or not all(figure.reached for figure in results) else 0)


def _mpush(quick: bool) -> list[Benchmark]:
    rounds, messages = (3, 50_000) if quick else (7, 500_000)
    return [
        lambda bed: figures.backlog(bed, 32, 2, 1.2, rounds, messages),
        lambda bed: figures.backlog(bed, KIB, 2, 1.0, rounds, messages),
        lambda bed: figures.backlog(bed, 32, 10, 1.0, rounds, messages),
        lambda bed: figures.settling(bed, rounds, messages),
        lambda bed: figures.one_at_a_time(bed, rounds),
        lambda bed: figures.growth(bed, rounds),
        lambda bed: figures.longest_move(bed, KIB, 50_000, rounds),
        lambda bed: figures.longest_move(bed, MIB, 200, rounds),
        *(partial(large.fanout, rounds=rounds, size=size, total=_large(quick)) for size in large.SIZES),
        lambda bed: large.hidden(bed, 5),
        lambda bed: figures.idle(bed, 10 if quick else 60),
        lambda bed: figures.process(bed, rounds),
    ]


def _tracking(quick: bool) -> list[Benchmark]:
    rounds, messages = (3, 10_000) if quick else (7, 100_000)
    return [
        lambda bed: tracking.dispatch(bed, rounds, messages),
        lambda bed: tracking.event_cost(bed, rounds, messages),
        lambda bed: tracking.lifecycle(bed, rounds, messages),
        lambda _: tracking.sweep(rounds, 10 * messages),
        lambda bed: replies.sequential(bed, rounds),
        lambda bed: replies.in_flight(bed, rounds, messages // 10),
        lambda bed: large.due(bed, rounds, KIB, _large(quick) // 10),
        *(partial(large.due, rounds=rounds, size=size, total=_large(quick)) for size in large.SIZES[1:]),
        lambda bed: tracking.memory(bed, 3, messages),
        lambda bed: tracking.idle(bed, 45),
    ]


def _vpush(quick: bool) -> list[Benchmark]:
    rounds, waiting = (3, 1_000_000) if quick else (7, 10_000_000)
    return [
        lambda bed: transport.backlog(bed, rounds, 100_000),
        *(partial(large.transport, rounds=rounds, size=size, total=_large(quick)) for size in large.SIZES),
        lambda bed: large.transport(bed, rounds, 5 * large.MB, _large(quick), large.SMALL_FIRST),
        lambda bed: transport.distance(bed, rounds, 100_000),
        lambda bed: transport.one_at_a_time(bed, rounds),
        lambda bed: transport.memory(bed, waiting),
        lambda bed: transport.takeover(bed, rounds),
    ]


def _large(quick: bool) -> int:
    """Return the total bytes of the large messages of a round."""
    return (50 if quick else 200) * large.MB


def _pipeline(quick: bool) -> list[Benchmark]:
    if problem := what_is_missing():
        return [lambda _: Figure("all of the pipeline", "", [], 0, missing=problem)]
    rounds, events = (1, 100_000) if quick else (5, archive.MILLION)
    return [
        lambda bed: reading.reading(bed, rounds, events),
        lambda bed: reading.splitting(bed, rounds, 2 * events),
        lambda bed: reading.one_hour(bed, 1 if quick else 3, 10 * events),
        lambda bed: tables.hashes(bed, rounds, events),
        lambda bed: tables.others(bed, rounds, events // 10),
        lambda bed: archive.archive(bed, 5 * events),
        lambda bed: archive.rolling_up(bed, 20 * events),
        lambda bed: archive.shards(bed, 1 if quick else 3, 4 * events),
        lambda bed: archive.merging(bed, 1 if quick else 3, events),
        lambda bed: archive.visible(bed, rounds + 2),
        lambda bed: archive.starting(bed, 1 if quick else 5),
        lambda bed: archive.many_namespaces(bed, 1_000 if quick else 10_000, 10),
        lambda bed: tracking.event_cost(bed, rounds, events // 10),
    ]


def _table(results: Iterable[Figure]) -> Table:
    table = Table("figure", "median", "min - max", "runs", "wanted", "", "beside")
    for figure in results:
        wanted = f"{'at least' if figure.at_least else 'at most'} {figure.limit:,g} {figure.unit}"
        if figure.missing:
            table.add_row(figure.name, "", "", "", wanted, f"[yellow]not measured: {figure.missing}", figure.note)
            continue
        spread = f"{short(min(figure.samples))} - {short(max(figure.samples))}"
        median = f"{short(figure.median)} {figure.unit}"
        reached = "[green]reached" if figure.reached else "[red]missed"
        table.add_row(figure.name, median, spread, str(len(figure.samples)), wanted, reached, figure.note)
    return table


def _nothing_fell(results: Iterable[Figure], former: Mapping[str, object]) -> str:
    known = sum(figure.name in former for figure in results if not figure.missing)
    return f"nothing fell by more than a tenth: {known} figures have one of before in {KEPT.name}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["peers"]:
        peers(sys.argv[2:], prog_name="python -m bench peers")
    else:
        app = typer.Typer(add_completion=False, context_settings=HELP)
        app.command()(main)
        app()
