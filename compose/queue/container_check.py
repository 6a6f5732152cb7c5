"""Check of the queue composition in containers: ``python -m compose.queue.container_check IMAGE``.

Add tasks while a replica of hqueue and a worker are stopped, then stop everything. The exit status is 0 only if every
task is done once with the right result, the sums hold, and all ended in the grace period with status 0.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from compose.containers import Container, becomes_true, conclude, containers, unhealthy
from compose.months import is_right, rows_by_month
from compose.queue.names import KEYS, KEYSPACE, OWNER, REPLIES, SERVICE, SOURCE
from penstock.accounting.tracked import audit_tracked
from penstock.connection import connect
from penstock.encoding import encoded
from penstock.hqueue import Queue, Queues, Status
from penstock.ports import free_port
from penstock.testing.server import EmbeddedServer
from penstock.tokens import add_token
from penstock.webhook import owner_secret

HERE: Final = Path(__file__).parent
STOPPED: Final = ("queue-one", "worker-bash")
"""Services that are stopped while tasks are done."""
SECRET: Final = "for-demos-only"
KEY_FOLDER: Final = "/etc/penstock/tests"
RIGHTS: Final = {"QUEUE_PRODUCER_TOKEN": ("add",), "QUEUE_WORKER_TOKEN": ("fetch", "ack"), "READER": ("info",)}


async def check(redis: "Redis", running: Sequence[Container], queue: Queue) -> list[str]:
    """Have all months summarised and stop everything; return a line for each fault."""
    if found := await unhealthy(running):
        return found
    rows = rows_by_month()
    months, tasks = [*rows], list[Status]()

    async def ended(many: int) -> bool:
        tasks[:] = [status for status in await queue.statuses(most=1_000) if status.has_ended]
        return len(tasks) >= many and (many < len(months) or await _is_through(redis))

    half = len(months) // 2
    for first, last in ((0, half), (half, len(months))):
        await redis.lpush(SOURCE, *months[first:last])
        for container in running:
            if last == half and container.service.name in STOPPED:
                container.terminate()
        if not await becomes_true(lambda last=last: ended(last)):  # type: ignore[misc]
            return [f"{len(tasks)} of {last} tasks have ended"]
    results = {status.name: (await queue.status(status.id)).result for status in tasks}
    found = [f"{name}: {results.get(name)}" for name in months if not is_right(results.get(name), rows[name])]
    found += [] if len(tasks) == len(months) else [f"{len(tasks)} tasks for {len(months)} months"]
    for container in running:
        if container.service.name not in STOPPED:
            container.terminate()
    statuses = {container.name: container.wait() for container in running}
    found += [f"{name}: exit status {status}" for name, status in statuses.items() if status]
    audit = await audit_tracked(redis, KEYS)
    print(f"{len(results)} tasks, {await redis.llen(_replies())} outcomes in the list")
    return [*found, *(audit.problems if audit else ["nothing was counted"])]


async def _is_through(redis: "Redis") -> bool:
    return not (await KEYSPACE.left(redis)).keys() - {KEYS.outcomes(OWNER, REPLIES)}


def _replies() -> bytes:
    return encoded(KEYS.outcomes(OWNER, REPLIES))


async def main(image: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the containers are removed
    port, webhook_port = free_port(), free_port()
    with EmbeddedServer(aof=True) as server:
        async with connect(server.url) as redis:
            tokens = {name: (await add_token(redis, KEYS, OWNER, rights, None))[0] for name, rights in RIGHTS.items()}
            url, reader = f"http://127.0.0.1:{port}", tokens.pop("READER")
            variables = tokens | {
                "HQUEUE_LISTEN_PORT": str(port),
                "HQUEUE_WEBHOOK_SECRET": SECRET,
                "HQUEUE_WEBHOOK_HOSTS": f"http://127.0.0.1:{webhook_port}",
                "HQUEUE_MASTER_KEY": f"file:{KEY_FOLDER}/master.key",
                "CREDENTIALS_DIRECTORY": KEY_FOLDER,
                "QUEUE_URL": url,
                "QUEUE_LEASE": "3",
                "QUEUE_WORK_SECONDS": "0.2",
                "QUEUE_WEBHOOK": f"http://127.0.0.1:{webhook_port}/outcomes",
                "QUEUE_WEBHOOK_PORT": str(webhook_port),
                "QUEUE_WEBHOOK_SECRET": owner_secret(SECRET, OWNER),
            }
            with containers(HERE / "compose.yaml", image, server.url, **variables) as running:
                async with Queues(url, token=reader) as queues:
                    found = await check(redis, running, queues[SERVICE])
                return conclude(running, found, "Every task is done once, every SIGTERM obeyed")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
