"""``make bench``: figures of the services and of their references in one run, as a table and as JSON."""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import archive, figures, large, reading, replies, tracking, transport
from bench.figures import KIB, MIB, Figure
from bench.peers.command import app as peers
from bench.stage import Stage
from penstock.spark.session import what_is_missing
from penstock.testing.server import EmbeddedServer

Take = Callable[[Stage], Figure | list[Figure]]


class Part(StrEnum):
    MPUSH = "mpush"
    TRACKING = "tracking"
    VPUSH = "vpush"
    PIPELINE = "pipeline"


def main(
    parts: Annotated[list[Part] | None, typer.Argument(help="Which figures to take; all by default.")] = None,
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go.")] = Path("bench.json"),
    quick: Annotated[bool, typer.Option(help="A tenth of the messages, fewer rounds: to try the benchmark.")] = False,
) -> None:
    """Take all figures; exit 1 where one is not reached. The same work through others: ``peers --help``."""
    plans = {
        Part.MPUSH: _mpush(quick),
        Part.TRACKING: _tracking(quick),
        Part.VPUSH: _vpush(quick),
        Part.PIPELINE: _pipeline(quick),
    }
    plan = [take for part in parts or Part for take in plans[part]]
    taken: list[Figure] = []
    with Progress(disable=not sys.stderr.isatty(), console=Console(stderr=True)) as progress:
        for take in progress.track(plan, description="measuring"):
            with EmbeddedServer() as server:
                found = take(Stage(server))
            taken += found if isinstance(found, list) else [found]
    Console(width=None if sys.stdout.isatty() else 160).print(_table(taken))
    json_file.write_text(json.dumps(_as_json(taken), indent=2) + "\n")
    raise typer.Exit(0 if all(figure.reached for figure in taken) else 1)


def _mpush(quick: bool) -> list[Take]:
    rounds, messages = (3, 50_000) if quick else (7, 500_000)
    return [
        lambda stage: figures.backlog(stage, 32, 2, 1.0, rounds, messages),
        lambda stage: figures.backlog(stage, KIB, 2, 0.95, rounds, messages),
        lambda stage: figures.backlog(stage, 32, 10, 1.0, rounds, messages),
        lambda stage: figures.settling(stage, rounds, messages),
        lambda stage: figures.one_at_a_time(stage, rounds),
        lambda stage: figures.growth(stage, rounds),
        lambda stage: figures.longest_move(stage, KIB, 50_000, rounds),
        lambda stage: figures.longest_move(stage, MIB, 200, rounds),
        *(partial(large.fanout, rounds=rounds, size=size, total=_large(quick)) for size in large.SIZES),
        lambda stage: figures.idle(stage, 10 if quick else 60),
        lambda stage: figures.process(stage, rounds),
    ]


def _tracking(quick: bool) -> list[Take]:
    rounds, messages = (3, 10_000) if quick else (7, 100_000)
    return [
        lambda stage: tracking.dispatch(stage, rounds, messages),
        lambda stage: tracking.telling(stage, rounds, messages),
        lambda stage: tracking.life(stage, rounds, messages),
        lambda _: tracking.sweep(rounds, 10 * messages),
        lambda stage: replies.sequential(stage, rounds),
        lambda stage: replies.in_flight(stage, rounds, messages // 10),
        lambda stage: tracking.memory(stage, 3, messages),
        lambda stage: tracking.idle(stage, 45),
    ]


def _vpush(quick: bool) -> list[Take]:
    rounds, waiting = (3, 1_000_000) if quick else (7, 10_000_000)
    return [
        lambda stage: transport.backlog(stage, rounds, 100_000),
        *(partial(large.transport, rounds=rounds, size=size, total=_large(quick)) for size in large.SIZES),
        lambda stage: large.transport(stage, rounds, 5 * large.MB, _large(quick), large.SMALL_FIRST),
        lambda stage: transport.far(stage, rounds, 100_000),
        lambda stage: transport.one_at_a_time(stage, rounds),
        lambda stage: transport.memory(stage, waiting),
        lambda stage: transport.takeover(stage, rounds),
    ]


def _large(quick: bool) -> int:
    """Total bytes of the large messages of a round."""
    return (50 if quick else 200) * large.MB


def _pipeline(quick: bool) -> list[Take]:
    if problem := what_is_missing():
        return [lambda _: Figure("all of the pipeline", "", [], 0, missing=problem)]
    rounds, events = (1, 100_000) if quick else (5, archive.MILLION)
    return [
        lambda stage: reading.reading(stage, rounds, events),
        lambda stage: archive.archive(stage, 5 * events),
        lambda stage: archive.rolling_up(stage, 20 * events),
        lambda stage: archive.shards(stage, 1 if quick else 3, 4 * events),
        lambda stage: archive.merging(stage, 1 if quick else 3, events),
        lambda stage: archive.visible(stage, rounds + 2),
        lambda stage: tracking.telling(stage, rounds, events // 10),
    ]


def _table(taken: Iterable[Figure]) -> Table:
    table = Table("figure", "median", "min - max", "runs", "wanted", "", "beside")
    for figure in taken:
        wanted = f"{'at least' if figure.at_least else 'at most'} {figure.limit:,g} {figure.unit}"
        if figure.missing:
            table.add_row(figure.name, "", "", "", wanted, f"[yellow]not measured: {figure.missing}", figure.note)
            continue
        spread = f"{_short(min(figure.samples))} - {_short(max(figure.samples))}"
        median = f"{_short(figure.median)} {figure.unit}"
        reached = "[green]reached" if figure.reached else "[red]missed"
        table.add_row(figure.name, median, spread, str(len(figure.samples)), wanted, reached, figure.note)
    return table


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _as_json(taken: Iterable[Figure]) -> dict[str, object]:
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    rows = [
        {
            "figure": figure.name,
            "unit": figure.unit,
            "median": None if figure.missing else figure.median,
            "min": min(figure.samples, default=None),
            "max": max(figure.samples, default=None),
            "samples": figure.samples,
            "limit": figure.limit,
            "limit_is": "least" if figure.at_least else "most",
            "reached": None if figure.missing else figure.reached,
            **({"not_measured": figure.missing} if figure.missing else {}),
            "note": figure.note,
        }
        for figure in taken
    ]
    return {"machine": machine, "figures": rows}


if __name__ == "__main__":
    if sys.argv[1:2] == ["peers"]:
        peers(sys.argv[2:], prog_name="python -m bench peers")
    else:
        typer.run(main)
