"""Check of the edge composition in containers: ``python -m compose.edge.container_check IMAGE``.

Push readings at all sites, half of them while one site is stopped, then stop everything. The exit status is 0 only if
each site has what the others have published, once, the audits hold, and all ended in the grace period with status 0.
"""

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from compose.comparison import Comparison
from compose.containers import Container, becomes_true, conclude, containers, unhealthy
from compose.edge.demo import ROWS
from compose.edge.site import SITES
from penstock.accounting.audit import audit
from penstock.connection import connect
from penstock.ports import free_port
from penstock.testing.server import EmbeddedServer

HERE: Final = Path(__file__).parent
SERVERS: Final = {"north": "redis", "east": "redis-east", "south": "redis-south"}
"""The host of each site's server in compose.yaml."""
STOPPED: Final = "north"
"""The site that is stopped while others publish."""


async def check(sites: Mapping[str, "Redis"], running: Sequence[Container]) -> list[str]:
    """Push all rows, a third at each site, and stop everything; return a line for each fault."""
    if found := await unhealthy(running):
        return found
    rows = {name: ROWS[number::3] for number, name in enumerate(sites)}
    half = len(ROWS) // 6
    [stopped] = [each for each in running if each.service.name == STOPPED]

    async def subscribed() -> bool:
        values = [await redis.hget(SITES[name].metric("outbox"), "subscribers") for name, redis in sites.items()]
        return all(value == b"2" for value in values)

    async def came(sent: Mapping[str, int], *to: str) -> bool:
        counts = {name: await sites[name].llen(f"edge:{name}:out") for name in to}
        return all(counts[name] >= sum(sent.values()) - sent[name] for name in to)

    if not await becomes_true(subscribed):
        return ["not every site has two subscribers"]
    for name, redis in sites.items():
        await redis.lpush(f"edge:{name}:in", *rows[name][:half])
    if not await becomes_true(lambda: came(dict.fromkeys(sites, half), *sites)):
        return ["the first readings did not arrive"]
    stopped.terminate()
    found = [f"{STOPPED}: exit status {status}"] if (status := stopped.wait()) else []
    for name, redis in sites.items():
        await redis.lpush(f"edge:{name}:in", *rows[name][half:])
    sent = {name: len(rows[name]) for name in sites}
    others = sites.keys() - {STOPPED}
    if not await becomes_true(lambda: came(sent | {STOPPED: half}, *others)):
        return ["the other readings did not arrive at the other sites"]
    stopped.start()
    await becomes_true(lambda: came(sent, *sites))
    for container in running:
        container.terminate()
    statuses = {container.name: container.wait() for container in running}
    found += [f"{name}: exit status {status}" for name, status in statuses.items() if status]
    for name, redis in sites.items():
        wanted = [row for other in rows if other != name for row in rows[other]]
        comparison = await Comparison.read(redis, f"edge:{name}:out", wanted, ordered=False)
        sums = await audit(redis, SITES[name])
        print(f"{name}: {comparison.got} of {comparison.sent} readings of the others")
        found += [*comparison.differences(), *(sums.problems if sums else [f"{name}: nothing was counted"])]
    return found


async def main(image: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the containers are removed
    async with AsyncExitStack() as stack:
        sites, replaced = dict[str, Redis](), dict[str, str]()
        for number, (name, host) in enumerate(SERVERS.items(), 7701):
            server = stack.enter_context(EmbeddedServer(aof=True))
            sites[name] = await stack.enter_async_context(connect(server.url))
            replaced[f"redis://{host}:6379/0"] = server.url
            replaced[f"0.0.0.0:{number}"] = replaced[f"{name}:{number}"] = f"127.0.0.1:{free_port()}"
        running = stack.enter_context(containers(HERE / "compose.yaml", image, replaced))
        found = await check(sites, running)
        return conclude(running, found)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
