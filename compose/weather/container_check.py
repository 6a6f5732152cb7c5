"""Check of the weather composition in containers: ``python -m compose.weather.container_check IMAGE``.

Send rows through while one replica of mpush is stopped; then stop everything. The exit status is 0 only if nothing was
lost or doubled, the audit holds, and all ended in the grace period with status 0 and without a registration left.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from compose.containers import Container, becomes_true, conclude, containers, unhealthy
from compose.outcome import Outcome
from compose.weather.demo import BRANCHES, KEYSPACE, SOURCE, read_outcome
from penstock.connection import connect
from penstock.testing.server import EmbeddedServer

HERE: Final = Path(__file__).parent
ROUNDS: Final = 40
"""Times that every row is sent: enough to stop a replica in the middle."""


async def check(redis: "Redis", running: Sequence[Container], rows: Sequence[bytes]) -> list[str]:
    """Send ``rows`` through and stop everything; return a line for each fault."""

    async def through() -> bool:
        return not await KEYSPACE.left(redis) and all(
            [await redis.llen(handled) >= len(rows) for handled in BRANCHES.values()]
        )

    if found := await unhealthy(running):
        return found
    stopped, *others = running
    part = len(rows) // ROUNDS
    for turn in range(ROUNDS):
        await redis.lpush(SOURCE, *rows[turn * part : (turn + 1) * part])
        if turn == ROUNDS // 2:
            stopped.terminate()
    await becomes_true(through)
    for container in others:
        container.terminate()
    return faults(await read_outcome(redis, rows, {container.name: container.wait() for container in running}))


def faults(outcome: Outcome) -> list[str]:
    """Return the differences except in order, which several replicas of mpush do not keep."""
    for comparison in outcome.comparisons:
        print(f"{comparison.name}: {comparison.sent} in, {comparison.got} out")
    unordered = [replace(comparison, ordered=False) for comparison in outcome.comparisons]
    return replace(outcome, comparisons=unordered).differences


async def main(image: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the containers are removed
    rows = (HERE / "seattle-weather.csv").read_bytes().splitlines()[1:] * ROUNDS
    with EmbeddedServer(aof=True) as server, containers(HERE / "compose.yaml", image, server.url) as running:
        async with connect(server.url) as redis:
            found = await check(redis, running, rows)
        return conclude(running, found)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
