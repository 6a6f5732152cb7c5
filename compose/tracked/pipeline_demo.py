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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from rich.text import Text

from compose import runner
from compose.bars import Bars, Snapshot
from compose.outcome import Outcome
from compose.tracked.demo import ALERT, ARCHIVE, HERE, KEYSPACE, ROWS, carry, read_outcome
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


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    runner.main("compose.tracked.pipeline_demo", __doc__, lambda url: run(url, rows, directory))


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
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

    async def evaluate(redis: "Redis", ended: Mapping[str, int]) -> Outcome:
        archive, page = ("--archive", str(place / "archive")), place / "report.html"
        report = await _command("report", "--all", *archive, "--html", str(page))
        reconciled = await _command("reconcile", *archive, "--live", "--redis", url)
        written, archived, seconds = await _written(redis), await _archived(redis), time.monotonic() - begun
        commands = {" ".join(each.args): each for each in (report, reconciled)}
        problems = [] if written == archived else [f"{written:,} events were written, {archived:,} are archived"]
        ends = {"pipeline": statuses["pipeline"]} | {words: each.status for words, each in commands.items()}
        problems += [f"{words}: exit status {status}" for words, status in ends.items() if status]
        tracked = await read_outcome(redis, rows, ended)
        printed = [text for words, each in commands.items() for text in (Text(f"\n{words}", "bold"), each.output)]
        summary = f"{archived:,} of {written:,} events archived in {seconds:.0f} s; the report: {page}"
        return replace(
            tracked,
            problems=[*tracked.problems, *problems],
            shown=[*tracked.shown, *printed, summary],
            data={
                **tracked.data,
                "events": {"told": written, "archived": archived},
                "commands": {words: each.status for words, each in commands.items()},
                "report": str(page),
                "seconds": seconds,
            },
        )

    return await runner.run_composition(url, directory, KEYSPACE, observe, evaluate, MONITOR_METRICS_PORT="0")


async def _until_archived(redis: "Redis", pipeline: asyncio.subprocess.Process) -> None:
    end, written = time.monotonic() + ARCHIVE_SECONDS, await _written(redis)

    async def look() -> Snapshot:
        return Snapshot({"archived": await _archived(redis)}, waiting=True)

    with Bars({"archived": written}, look) as bars:
        while (await bars.draw()).counts["archived"] < written and time.monotonic() < end:
            if pipeline.returncode is not None:
                return
            await asyncio.sleep(0.1)


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


if __name__ == "__main__":
    main()
