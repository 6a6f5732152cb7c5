"""The tracked composition archived and proved: ``python -m compose.tracked.pipeline_demo``, or ``make demo-pipeline``.

As the demo of the composition, with the pipeline beside it; then the report and the reconciliation of what it archived.
It needs Java. Exits 0 only if the demo does, every event is in the archive once and the reconciliation finds all
messages.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from rich.console import Console

from compose import stage
from compose.tracked import show
from compose.tracked.demo import HERE, ROWS, carry
from compose.tracked.keyspace import ALERT, ARCHIVE, KEYSPACE
from compose.tracked.outcome import Outcome, read_outcome
from penstock.composition.procfile import Composition
from penstock.errors import Unsuitable
from penstock.keys import Keys

PIPELINE: Final = Keys("tracked:pipeline")
PATIENCE: Final = 120.0
"""Longest time until all events have to be in the archive (s)."""


@dataclass(frozen=True)
class Command:
    """What a command said, and its exit status."""

    words: tuple[str, ...]
    status: int
    said: str


@dataclass(frozen=True)
class Observed:
    """The demo's outcome and what the archive says of it."""

    tracked: Outcome
    told: int
    """Events."""
    archived: int
    status: int
    """How the pipeline ended."""
    commands: tuple[Command, ...]
    report: Path
    seconds: float

    @property
    def differences(self) -> list[str]:
        found = list(self.tracked.differences)
        if self.told != self.archived:
            found.append(f"{self.told:,} events were told, {self.archived:,} are archived")
        if self.status:
            found.append(f"pipeline: exit status {self.status}")
        return found + [f"{' '.join(each.words)}: exit status {each.status}" for each in self.commands if each.status]

    def figures(self) -> dict[str, object]:
        """For JSON."""
        return {
            **self.tracked.figures(),
            "holds": not self.differences,
            "differences": self.differences,
            "events": {"told": self.told, "archived": self.archived},
            "commands": {" ".join(each.words): each.status for each in self.commands},
            "report": str(self.report),
            "seconds": self.seconds,
        }


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    stage.main("compose.tracked.pipeline_demo", __doc__, lambda url: run(url, rows, directory), _show)


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Observed:
    """Send ``rows`` through the composition with a pipeline beside it, on the server at ``url``.

    Raises ``PenstockError`` where that server holds data of a composition that is not a demo's, or there is no Spark.
    """
    from penstock.spark.session import what_is_missing

    if problem := what_is_missing():
        raise Unsuitable(problem)
    begun, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="penstock-pipeline-"))
    statuses: dict[str, int] = {}

    async def observe(redis: "Redis", composition: Composition) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(stage.SETTINGS)}
        environ = kept | {"REDIS": url, "PIPELINE_ARCHIVE": str(place / "archive")}
        await redis.delete(PIPELINE.metric("pipeline"))
        with (place / "pipeline.log").open("w") as log:
            words = ("-m", "services.pipeline", "--props", str(HERE / "pipeline.yaml"))
            pipeline = await asyncio.create_subprocess_exec(sys.executable, *words, env=environ, stdout=log, stderr=log)
            try:
                await carry(redis, rows, composition)
                await _until_archived(redis, pipeline)
            finally:
                if pipeline.returncode is None:
                    pipeline.terminate()
                statuses["pipeline"] = await pipeline.wait()
        if statuses["pipeline"]:
            print((place / "pipeline.log").read_text(), file=sys.stderr)

    async def judge(redis: "Redis", ended: Mapping[str, int]) -> Observed:
        archive = ("--archive", str(place / "archive"))
        report = await _command("report", "--all", *archive, "--html", str(place / "report.html"))
        reconciled = await _command("reconcile", *archive, "--live", "--redis", url)
        return Observed(
            await read_outcome(redis, rows, ended),
            await _told(redis),
            await _archived(redis),
            statuses["pipeline"],
            (report, reconciled),
            place / "report.html",
            time.monotonic() - begun,
        )

    return await stage.perform(url, directory, KEYSPACE, observe, judge, MONITOR_METRICS_PORT="0")


async def _until_archived(redis: "Redis", pipeline: asyncio.subprocess.Process) -> None:
    end = time.monotonic() + PATIENCE
    told = await _told(redis)
    with stage.progress() as progress:
        bar = progress.add_task("archived", total=told)
        while (archived := await _archived(redis)) < told and time.monotonic() < end and pipeline.returncode is None:
            progress.update(bar, completed=archived)
            await asyncio.sleep(0.1)
        progress.update(bar, completed=archived)


async def _told(redis: "Redis") -> int:
    return sum([int(await redis.hget(keys.metric("events"), "count") or 0) for keys in (ARCHIVE, ALERT)])


async def _archived(redis: "Redis") -> int:
    return int(await redis.hget(PIPELINE.metric("pipeline"), "count") or 0)


async def _command(*words: str) -> Command:
    """``penstock`` with ``words``."""
    environ = os.environ | {"COLUMNS": "160"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "penstock",
        *words,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaints = await process.communicate()
    status = await process.wait()
    return Command(("penstock", *words), status, (said + (complaints if status else b"")).decode(errors="replace"))


def _show(observed: Observed, console: Console) -> None:
    show.show(observed.tracked, console)
    for command in observed.commands:
        console.print(f"\n[bold]{' '.join(command.words)}", highlight=False)
        console.print(command.said, markup=False, highlight=False, soft_wrap=True)
    found = f"{observed.archived:,} of {observed.told:,} events archived in {observed.seconds:.0f} s"
    console.print(f"{found}; the report: {observed.report}", highlight=False, soft_wrap=True)
    for difference in observed.differences:
        console.print(f"[red]{difference}", highlight=False)


if __name__ == "__main__":
    main()
