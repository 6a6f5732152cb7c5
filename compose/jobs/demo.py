"""Jobs for two groups on real input, checked: ``python -m compose.jobs.demo [--json]``, or ``make demo-jobs``.

One group is a service in two processes and one more, which is killed in a job; the other one is Node's hfxbus. It uses
an embedded server, or the one of the variable REDIS. The exit status is 0 only if every job ended once for each group,
all results are right, all sums hold, and every process ended with 0 on SIGTERM, but the killed one.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from rich.progress import TextColumn

from compose import runner
from compose.jobs.keyspace import KEYSPACE
from compose.jobs.names import GROUPS, JOBS, KEYS, MONTHS, OUT, PREFIX, SOURCE, STATISTICS, TALLY
from compose.jobs.outcome import Observed, Outcome, read_outcome
from compose.jobs.show import show
from compose.jobs.snow import HFXBUS
from compose.months import rows_by_month
from penstock.composition.procfile import ProcessGroup
from penstock.encoding import encoded
from penstock.errors import PenstockError
from penstock.jobs import Completion, Jobs

HERE: Final = Path(__file__).parent
CLAIM_AFTER: Final = 2.0
WORK_SECONDS: Final = 0.2
SLOW: Final = "slow"
"""The process that is killed in its first job, which takes it longer than the demo."""
NEVER: Final = "1812-01"
"""A month of which there are no rows: its job is dead in one group, and done in the other one."""
TALLIES: Final = 3
"""How often the job that is repeated must have been done."""
STANDSTILL_SECONDS: Final = 8.0


def main(directory: Path = HERE, months: int = 48, patience: float = runner.MAX_SECONDS) -> None:
    runner.main("compose.jobs.demo", __doc__, lambda url: run(url, directory, months, patience), show)


async def run(url: str, directory: Path = HERE, months: int = 48, patience: float = runner.MAX_SECONDS) -> Outcome:
    """Have the last ``months`` done by the composition in ``directory``, on the server at ``url``.

    The producer waits for the groups of a month for ``patience`` (s).

    Raise ``PenstockError`` if that server holds data of this composition that no demo put there.
    """
    why = "it was asked for" if os.environ.get("FIGURES_SNOW") == "python" else HFXBUS.install()
    print(f"group snow: {'Node' if not why else f'Python, as {why}'}", file=sys.stderr)
    demo = _Demo([*rows_by_month()][-months:], url, "Python" if why else "Node's hfxbus")
    names = {"statistics": "service", SLOW: SLOW, "snow": "python" if why else "node"}
    given = {name: {"FIGURES_WORKER": worker} for name, worker in names.items()}
    given[SLOW] |= {"FIGURES_SLOW_SECONDS": str(2 * runner.MAX_SECONDS), "FIGURES_CONCURRENCY": "1"}
    return await runner.run_composition(
        url,
        directory,
        KEYSPACE,
        demo.carry,
        lambda redis, statuses: read_outcome(redis, url, demo.seen, statuses),
        process_variables=given,
        FIGURES_CLAIM_AFTER=str(CLAIM_AFTER),
        FIGURES_WORK_SECONDS=str(WORK_SECONDS),
        FIGURES_PATIENCE=str(patience),
        FIGURES_SNOW="python" if why else "node",
    )


class _Demo:
    """One run."""

    def __init__(self, months: Sequence[str], url: str, snow: str) -> None:
        self._url = url
        self.seen = Observed(months, NEVER, SLOW, TALLIES, snow)

    async def carry(self, redis: "Redis", composition: ProcessGroup) -> None:
        """Have all jobs done while a process is killed, and note what became of them."""
        await self._until_up(redis, composition)
        begun = time.monotonic()
        async with Jobs(self._url, prefix=PREFIX) as jobs, jobs.producer().completions(MONTHS) as heard:
            await redis.lpush(SOURCE, *sorted([*self.seen.months, NEVER], key=lambda month: (month[5:], month)))
            killing = asyncio.create_task(self._kill_one(redis, composition))
            try:
                await self._until_through(redis, heard, begun)
            finally:
                killing.cancel()
                for found in await asyncio.gather(killing, return_exceptions=True):
                    if isinstance(found, Exception):
                        self.seen.problems.append(f"the demo: {found}")
            await jobs.repeats.remove(TALLY, TALLY)
            await self._until_idle(redis)
            self._take(heard)
        self.seen.seconds = time.monotonic() - begun

    async def _until_through(self, redis: "Redis", heard: "asyncio.Queue[Completion]", begun: float) -> None:
        """Wait until all months have come out and enough tallies were made, or nothing changes any more."""
        total, since = len(self.seen.months) + 1, time.monotonic()
        state = tuple[int, ...]()
        with runner.progress(TextColumn("{task.fields[state]}"), width=20) as progress:
            bars = [progress.add_task(name, total=total, state="") for name in (*GROUPS, "out")]
            tallies = progress.add_task("tallies", total=TALLIES, state="")
            while time.monotonic() < begun + runner.MAX_SECONDS:
                self._take(heard)
                out, many = await redis.llen(OUT), await redis.xlen(encoded(JOBS.done(TALLY)))
                by_group = [sum(each.group == group for each in self.seen.completed) for group in GROUPS]
                for bar, completed in zip(bars, (*by_group, out), strict=True):
                    progress.update(bar, completed=completed)
                held = ", ".join(f"{by} has {job}" for job, by in sorted((await self._held(redis)).items()))
                progress.update(bars[0], state=held)
                progress.update(tallies, completed=min(many, TALLIES))
                now = (*by_group, out)
                if now != state:
                    state, since = now, time.monotonic()
                if out >= total and many >= TALLIES and self.seen.killed:
                    return
                if time.monotonic() - since > STANDSTILL_SECONDS:
                    return
                await asyncio.sleep(0.1)

    def _take(self, heard: "asyncio.Queue[Completion]") -> None:
        while not heard.empty():
            self.seen.completed.append(heard.get_nowait())

    async def _held(self, redis: "Redis") -> dict[str, str]:
        """Return who has said last that it does the job of a month in the group of the service, by month."""
        ended = {each.job for each in self.seen.completed if each.group == STATISTICS}
        left = [name for name in [*self.seen.months, NEVER] if name not in ended]
        found: list[Any] = (
            await redis.mget([encoded(JOBS.payload(name, f"progress:{STATISTICS}")) for name in left]) if left else []
        )
        return {name: json.loads(value)["by"] for name, value in zip(left, found, strict=True) if value}

    async def _kill_one(self, redis: "Redis", composition: ProcessGroup) -> None:
        """Kill the slow process in its job, once others have done some."""
        while len(self.seen.completed) < len(self.seen.months) / 2 or not self.seen.killed:
            for month, by in (await self._held(redis)).items():
                if by.startswith(f"{SLOW}-"):
                    self.seen.killed, self.seen.killed_worker = month, by
            await asyncio.sleep(0.05)
        pid = await composition.kill(SLOW)
        self.seen.has_killed = True
        await KEYSPACE.expire_registration(redis, pid)

    async def _until_idle(self, redis: "Redis") -> None:
        """Wait until the last tally is done, too, or nothing more can be."""
        until = time.monotonic() + STANDSTILL_SECONDS
        while time.monotonic() < until and await KEYSPACE.left(redis):
            await asyncio.sleep(0.05)

    async def _until_up(self, redis: "Redis", composition: ProcessGroup) -> None:
        until = time.monotonic() + runner.MAX_SECONDS
        while await redis.llen(KEYS.ids) < 3 or len(await self._groups(redis)) < len(GROUPS):
            if time.monotonic() > until or len(composition.running) < len(composition.commands):
                raise PenstockError(f"the composition did not start: {composition.statuses or 'not all are there'}")
            await asyncio.sleep(0.05)

    async def _groups(self, redis: "Redis") -> list[Any]:
        name = encoded(JOBS.stream(MONTHS))
        return [*await redis.xinfo_groups(name)] if await redis.exists(name) else []


if __name__ == "__main__":
    main()
