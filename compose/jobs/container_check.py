"""Check of the jobs composition in containers: ``python -m compose.jobs.container_check IMAGE``.

Have months done while a worker of one group is stopped, then stop everything. The exit status is 0 only if every job is
done once with the right results, the sums hold, and all ended in the grace period with status 0.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from compose.containers import Container, becomes_true, conclude, containers, unhealthy
from compose.jobs.names import KEYS, KEYSPACE, OUT, PREFIX, SOURCE, TALLY
from compose.jobs.outcome import wrong_results
from compose.months import rows_by_month
from penstock.accounting.tracked import audit_tracked
from penstock.connection import connect
from penstock.jobs import Jobs
from penstock.testing.server import EmbeddedServer

HERE: Final = Path(__file__).parent
STOPPED: Final = "slow"
"""The service that is stopped while jobs are done."""


async def check(redis: "Redis", url: str, running: Sequence[Container]) -> list[str]:
    """Have all months done and stop everything; return a line for each fault."""
    if found := await unhealthy(running):
        return found
    rows = rows_by_month()
    months = [*rows]
    half = len(months) // 2

    async def came_out(many: int) -> bool:
        return await redis.llen(OUT) >= many

    for first, last in ((0, half), (half, len(months))):
        await redis.lpush(SOURCE, *months[first:last])
        for container in running:
            if last > half and container.service.name == STOPPED:
                container.terminate()
        if not await becomes_true(lambda last=last: came_out(last)):  # type: ignore[misc]
            return [f"{await redis.llen(OUT)} of {last} months came out"]
    out: list[Any] = [json.loads(each) for each in await redis.lrange(OUT, 0, -1)]
    found = [line for each in out for line in wrong_results(each, rows[each["request"]])]
    found += [] if sorted(each["request"] for each in out) == months else [f"{len(out)} came out of {len(months)}"]
    async with Jobs(url, prefix=PREFIX) as jobs:
        await jobs.repeats.remove(TALLY, TALLY)

    async def is_idle() -> bool:
        return not await KEYSPACE.left(redis)

    found += [] if await becomes_true(is_idle) else [f"left behind: {await KEYSPACE.left(redis)}"]
    for container in running:
        if container.service.name != STOPPED:
            container.terminate()
    statuses = {container.name: container.wait() for container in running}
    found += [f"{name}: exit status {status}" for name, status in statuses.items() if status]
    audit = await audit_tracked(redis, KEYS)
    print(f"{len(out)} months, {audit.messages if audit else 0} jobs of the group of the service")
    return [*found, *(audit.problems if audit else ["nothing was counted"])]


async def main(image: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the containers are removed
    with EmbeddedServer(aof=True) as server:
        variables = {"FIGURES_CLAIM_AFTER": "2", "FIGURES_WORK_SECONDS": "0.2"}
        async with connect(server.url) as redis:
            with containers(HERE / "compose.yaml", image, server.url, **variables) as running:
                found = await check(redis, server.url, running)
                return conclude(running, found, "Every job is done once for each group, every SIGTERM obeyed")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
