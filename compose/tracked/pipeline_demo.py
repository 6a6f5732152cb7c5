"""Archive and check the tracked composition: ``python -m compose.tracked.pipeline_demo``, or ``make demo-pipeline``.

Run the demo of the composition with a pipeline, then report and reconcile the archived events. It needs Java. Exits 0
only if the demo does, every event is archived once, and every message is reconciled.
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

from compose import runner
from compose.tracked import show
from compose.tracked.demo import HERE, ROWS, carry
from compose.tracked.keyspace import ALERT, ARCHIVE, KEYSPACE
from compose.tracked.outcome import Outcome, read_outcome
from penstock.composition.procfile import ProcessGroup
from penstock.errors import Unsuitable
from penstock.keys import Keys

PIPELINE: Final = Keys("tracked:pipeline")
ARCHIVE_SECONDS: Final = 120.0
"""Maximum time until all events are archived."""


@dataclass(frozen=True)
class Command:
    """A command, its exit status and its output."""

    args: tuple[str, ...]
    status: int
    output: str


@dataclass(frozen=True)
class Observed:
    """Outcome of the demo, the pipeline and the commands."""

    tracked: Outcome
    written: int
    """Events that mdispatch and monitor have written."""
    archived: int
    status: int
    """Exit status of the pipeline."""
    commands: tuple[Command, ...]
    report: Path
    seconds: float

    @property
    def differences(self) -> list[str]:
        found = list(self.tracked.differences)
        if self.written != self.archived:
            found.append(f"{self.written:,} events were written, {self.archived:,} are archived")
        if self.status:
            found.append(f"pipeline: exit status {self.status}")
        return found + [f"{' '.join(each.args)}: exit status {each.status}" for each in self.commands if each.status]

    def figures(self) -> dict[str, object]:
        """Return what ``--json`` prints."""
        return {
            **self.tracked.figures(),
            "holds": not self.differences,
            "differences": self.differences,
            "events": {"told": self.written, "archived": self.archived},
            "commands": {" ".join(each.args): each.status for each in self.commands},
            "report": str(self.report),
            "seconds": self.seconds,
        }


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    runner.main("compose.tracked.pipeline_demo", __doc__, lambda url: run(url, rows, directory), _show)


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Observed:
    """Send ``rows`` through the composition with a pipeline beside it, on the server at ``url``.

    Raise ``PenstockError`` if that server holds data of a composition that is no demo, or Spark is missing.
    """
    from penstock.spark.session import what_is_missing

    if problem := what_is_missing():
        raise Unsuitable(problem)
    begun, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="penstock-pipeline-"))
    statuses: dict[str, int] = {}

    async def observe(redis: "Redis", composition: ProcessGroup) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(runner.SETTING_PREFIXES)}
        environ = kept | {"REDIS": url, "PIPELINE_ARCHIVE": str(place / "archive")}
        await redis.delete(PIPELINE.metric("pipeline"))
        with (place / "pipeline.log").open("w") as log:
            args = ("-m", "services.pipeline", "--props", str(HERE / "pipeline.yaml"))
            pipeline = await asyncio.create_subprocess_exec(sys.executable, *args, env=environ, stdout=log, stderr=log)
            try:
                await carry(redis, rows, composition)
                await _until_archived(redis, pipeline)
            finally:
                if pipeline.returncode is None:
                    pipeline.terminate()
                statuses["pipeline"] = await pipeline.wait()
        if statuses["pipeline"]:
            print((place / "pipeline.log").read_text(), file=sys.stderr)

    async def evaluate(redis: "Redis", ended: Mapping[str, int]) -> Observed:
        archive = ("--archive", str(place / "archive"))
        report = await _command("report", "--all", *archive, "--html", str(place / "report.html"))
        reconciled = await _command("reconcile", *archive, "--live", "--redis", url)
        return Observed(
            await read_outcome(redis, rows, ended),
            await _written(redis),
            await _archived(redis),
            statuses["pipeline"],
            (report, reconciled),
            place / "report.html",
            time.monotonic() - begun,
        )

    return await runner.run_composition(url, directory, KEYSPACE, observe, evaluate, MONITOR_METRICS_PORT="0")


async def _until_archived(redis: "Redis", pipeline: asyncio.subprocess.Process) -> None:
    end = time.monotonic() + ARCHIVE_SECONDS
    written = await _written(redis)
    with runner.progress() as progress:
        bar = progress.add_task("archived", total=written)
        while (archived := await _archived(redis)) < written and time.monotonic() < end and pipeline.returncode is None:
            progress.update(bar, completed=archived)
            await asyncio.sleep(0.1)
        progress.update(bar, completed=archived)


async def _written(redis: "Redis") -> int:
    return sum([int(await redis.hget(keys.metric("events"), "count") or 0) for keys in (ARCHIVE, ALERT)])


async def _archived(redis: "Redis") -> int:
    return int(await redis.hget(PIPELINE.metric("pipeline"), "count") or 0)


async def _command(*args: str) -> Command:
    """Run ``penstock`` with ``args``."""
    environ = os.environ | {"COLUMNS": "160"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "penstock",
        *args,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    status = await process.wait()
    return Command(("penstock", *args), status, (output + (errors if status else b"")).decode(errors="replace"))


def _show(observed: Observed, console: Console) -> None:
    show.show(observed.tracked, console)
    for command in observed.commands:
        console.print(f"\n[bold]{' '.join(command.args)}", highlight=False)
        console.print(command.output, markup=False, highlight=False, soft_wrap=True)
    found = f"{observed.archived:,} of {observed.written:,} events archived in {observed.seconds:.0f} s"
    console.print(f"{found}; the report: {observed.report}", highlight=False, soft_wrap=True)
    for difference in observed.differences:
        console.print(f"[red]{difference}", highlight=False)


if __name__ == "__main__":
    main()
