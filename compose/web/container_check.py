"""Check of the web composition in containers: ``python -m compose.web.container_check IMAGE``.

Send requests while an importer and a worker are stopped, then stop everything. The exit status is 0 only if no
idempotent request failed, no POST was done twice, the audits hold, and all ended in the grace period with status 0.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from compose.containers import Container, becomes_true, conclude, containers, unhealthy
from compose.web.client import Client, is_served
from compose.web.demo import read_outcome
from compose.web.load import Load
from compose.web.names import KEYSPACE
from penstock.connection import connect
from penstock.ports import free_port
from penstock.testing.server import EmbeddedServer

HERE: Final = Path(__file__).parent
HOST: Final = "127.0.0.1"
RATE: Final = 50.0
"""Requests a second."""
STEP_SECONDS: Final = 5.0
STOPPED: Final = ("importer-one", "worker-1")
"""Services that are stopped under the load."""


async def check(redis: "Redis", running: Sequence[Container], port: int) -> list[str]:
    """Send requests to ``port`` and stop everything; return a line for each fault."""
    if found := await unhealthy(running):
        return found
    client = Client(HOST, port)
    if not await becomes_true(lambda: is_served(client)):
        return ["no page comes"]
    client.close()
    load = Load(HOST, port, RATE)
    load.begin("all run")
    asking = asyncio.create_task(load.run(STEP_SECONDS * (len(STOPPED) + 1)))
    for name in STOPPED:
        await asyncio.sleep(STEP_SECONDS)
        load.begin(f"{name} stopped")
        [stopped] = [each for each in running if each.service.name == name]
        stopped.terminate()
    await asking
    await becomes_true(lambda: _is_through(redis))
    for container in running:
        if container.service.name not in STOPPED:
            container.terminate()
    statuses = {container.name: container.wait() for container in running}
    for step in load.steps:
        print(f"{step.name}: {step.asked} requests, {step.again} tried again, slowest {step.slowest:.2f} s")
    return (await read_outcome(redis, load, statuses)).differences


async def _is_through(redis: "Redis") -> bool:
    return not await KEYSPACE.left(redis)


async def main(image: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the containers are removed
    port = free_port()
    own = {"HIMPORTER_LISTEN_PORT": str(port), "MONITOR_METRICS_PORT": "0"}
    with (
        EmbeddedServer(aof=True) as server,
        containers(HERE / "compose.yaml", image, server.url, **own) as running,
    ):
        async with connect(server.url) as redis:
            found = await check(redis, running, port)
        return conclude(running, found, "No request failed, every SIGTERM obeyed")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
