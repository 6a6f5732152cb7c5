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

from compose import runner
from compose.bars import MAX_SECONDS, Bars, Snapshot
from compose.jobs.names import GROUPS, JOBS, KEYS, KEYSPACE, MONTHS, OUT, PREFIX, SOURCE, STATISTICS, TALLY
from compose.jobs.outcome import Found, read_outcome
from compose.jobs.snow import HFXBUS
from compose.months import rows_by_month
from compose.outcome import Outcome
from penstock.composition.procfile import ProcessGroup
from penstock.encoding import encoded
from penstock.jobs import Jobs

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


def main(directory: Path = HERE, months: int = 48, patience: float = MAX_SECONDS) -> None:
    runner.main("compose.jobs.demo", __doc__, lambda url: run(url, directory, months, patience))


async def run(url: str, directory: Path = HERE, months: int = 48, patience: float = MAX_SECONDS) -> Outcome:
    """Have the last ``months`` done by the composition in ``directory``, on the server at ``url``.

    The producer waits for the groups of a month for ``patience`` (s).
    """
    why = "it was asked for" if os.environ.get("FIGURES_SNOW") == "python" else HFXBUS.install()
    print(f"group snow: {'Node' if not why else f'Python, as {why}'}", file=sys.stderr)
    demo = _Demo([*rows_by_month()][-months:], url, "Python" if why else "Node's hfxbus")
    names = {"statistics": "service", SLOW: SLOW, "snow": "python" if why else "node"}
    given = {name: {"FIGURES_WORKER": worker} for name, worker in names.items()}
    given[SLOW] |= {"FIGURES_SLOW_SECONDS": str(2 * MAX_SECONDS), "FIGURES_CONCURRENCY": "1"}
    return await runner.run_composition(
        url,
        directory,
        KEYSPACE,
        demo.carry,
        lambda redis, statuses: read_outcome(redis, url, demo.found, statuses),
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
        self.found = Found(months, NEVER, SLOW, TALLIES, snow)

    async def carry(self, redis: "Redis", composition: ProcessGroup) -> None:
        """Have all jobs done while a process is killed, and note what became of them."""
        begun, found, names = time.monotonic(), self.found, [*self.found.months, NEVER]

        async def are_up() -> bool:
            name = encoded(JOBS.stream(MONTHS))
            groups = [*await redis.xinfo_groups(name)] if await redis.exists(name) else []
            return await redis.llen(KEYS.ids) >= 3 and len(groups) >= len(GROUPS)

        async def look() -> Snapshot:
            while not heard.empty():
                found.completed.append(heard.get_nowait())
            counts = {group: sum(each.group == group for each in found.completed) for group in GROUPS}
            counts["out"] = await redis.llen(OUT)
            counts["tallies"] = min(await redis.xlen(encoded(JOBS.done(TALLY))), TALLIES)
            held = ", ".join(f"{by} has {job}" for job, by in sorted((await self._held(redis)).items()))
            return Snapshot(counts, waiting=False, states={STATISTICS: held}, through=found.has_killed)

        async def is_idle() -> bool:
            return not await KEYSPACE.left(redis)

        await runner.until(composition, are_up, otherwise="not all are there")
        totals = dict.fromkeys((*GROUPS, "out"), len(names)) | {"tallies": TALLIES}
        async with (
            Jobs(self._url, prefix=PREFIX) as jobs,
            jobs.producer().completions(MONTHS) as heard,
            runner.meanwhile(found.problems, self._kill_one(redis, composition)),
        ):
            await redis.lpush(SOURCE, *sorted(names, key=lambda month: (month[5:], month)))
            with Bars(totals, look, width=20) as bars:
                await bars.until_through(composition, standstill=STANDSTILL_SECONDS, killed=(SLOW,))
            await jobs.repeats.remove(TALLY, TALLY)
            await runner.until(composition, is_idle, seconds=STANDSTILL_SECONDS, killed=(SLOW,))
            await look()
        found.seconds = time.monotonic() - begun

    async def _held(self, redis: "Redis") -> dict[str, str]:
        """Return who has said last that it does the job of a month in the group of the service, by month."""
        ended = {each.job for each in self.found.completed if each.group == STATISTICS}
        left = [name for name in [*self.found.months, NEVER] if name not in ended]
        names = [encoded(JOBS.payload(name, f"progress:{STATISTICS}")) for name in left]
        values: list[Any] = await redis.mget(names) if names else []
        return {name: json.loads(value)["by"] for name, value in zip(left, values, strict=True) if value}

    async def _kill_one(self, redis: "Redis", composition: ProcessGroup) -> None:
        """Kill the slow process in its job, once others have done some."""
        found = self.found
        while len(found.completed) < len(found.months) / 2 or not found.killed:
            for month, by in (await self._held(redis)).items():
                if by.startswith(f"{SLOW}-"):
                    found.killed, found.killed_worker = month, by
            await asyncio.sleep(0.05)
        await KEYSPACE.expire_registration(redis, await composition.kill(SLOW))
        found.has_killed = True


if __name__ == "__main__":
    main()
