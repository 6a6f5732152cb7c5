"""Work over HTTP on real input, checked: ``python -m compose.queue.demo [--json]``, or ``make demo-queue``.

Workers in bash, Node and Python summarise months of weather. One is killed in its task, one is slower than its lease,
one forges tokens. It uses an embedded server, or the one of the variable REDIS. The exit status is 0 only if every task
ended once, all results are right, all outcomes were delivered once, all sums hold, the server has no plaintext, and
every process ended with 0 on SIGTERM.
"""

import asyncio
import base64
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from compose import runner
from compose.bars import Bars, Snapshot
from compose.months import rows_by_month
from compose.outcome import Outcome
from compose.queue.forger import Forger
from compose.queue.names import KEYS, KEYSPACE, OWNER, REPLIES, SERVICE, SOURCE
from compose.queue.outcome import Found, read_outcome
from penstock.composition.procfile import ProcessGroup
from penstock.encoding import decoded, encoded
from penstock.hqueue import Queue, Queues, Status
from penstock.ports import free_port
from penstock.tokens import add_token
from penstock.webhook import owner_secret

HERE: Final = Path(__file__).parent
HOST: Final = "127.0.0.1"
LEASE: Final = 2.0
WORK_SECONDS: Final = 0.25
SLOW: Final = "worker-bash"
"""The process whose first task takes twice its lease."""
KILLED: Final = ("worker-python", "python")
"""The process that is killed in a task, and its name as a worker."""
NEVER: Final = "1812-01"
"""A month of which there are no rows: its task is dead."""
CANCELLED: Final = "2016-01"
REFUSALS: Final = 3
"""Webhooks that the receiver refuses at first."""
STRANGER: Final = "mallory"
RETRY_SECONDS: Final = 4.0
"""Longest time until a webhook that was refused comes again."""
RIGHTS: Final = {
    "QUEUE_PRODUCER_TOKEN": (OWNER, ("add",)),
    "QUEUE_WORKER_TOKEN": (OWNER, ("fetch", "ack")),
    "QUEUE_READER_TOKEN": (OWNER, ("info", "add")),
    "QUEUE_STRANGER_TOKEN": (STRANGER, ("admin",)),
}
"""Owner and rights of the token in each variable."""


def main(directory: Path = HERE, months: int = 48, lease: float = LEASE) -> None:
    runner.main("compose.queue.demo", __doc__, lambda url: run(url, directory, months, lease), aof=True)


async def run(url: str, directory: Path = HERE, months: int = 48, lease: float = LEASE) -> Outcome:
    """Have the last ``months`` summarised by the composition in ``directory``, on the server at ``url``.

    A worker has a task for ``lease`` (s).
    """
    with tempfile.TemporaryDirectory(prefix="penstock-queue-") as folder:
        demo = _Demo([*rows_by_month()][-months:], Path(folder), lease)
        return await runner.run_composition(
            url,
            directory,
            KEYSPACE,
            demo.carry,
            lambda redis, statuses: read_outcome(redis, demo.found, statuses),
            prepare=demo.prepare,
            process_variables={SLOW: {"QUEUE_SLOW_SECONDS": str(2 * lease)}},
        )


class _Demo:
    """One run."""

    def __init__(self, months: Sequence[str], folder: Path, lease: float) -> None:
        self._months, self._folder, self._lease = months, folder, lease
        self._url, self._webhooks = f"http://{HOST}:{free_port()}", f"http://{HOST}:{free_port()}"
        self._mark = secrets.token_hex(8)
        self._tokens: dict[str, str] = {}
        self.found = Found(months, NEVER, CANCELLED, KILLED[1], KILLED[0], self._mark)

    async def prepare(self, redis: "Redis") -> Mapping[str, str]:
        """Make the tokens and the master key; return the variables of all processes."""
        for variable, (owner, rights) in RIGHTS.items():
            self._tokens[variable], _ = await add_token(redis, KEYS, owner, rights, None)
        key, root = self._folder / "master.key", secrets.token_hex(32)
        key.touch(mode=0o600)
        key.write_bytes(base64.b64encode(secrets.token_bytes(32)))
        known = ("QUEUE_PRODUCER_TOKEN", "QUEUE_WORKER_TOKEN")
        return {name: self._tokens[name] for name in known} | {
            "HQUEUE_LISTEN_PORT": self._url.rpartition(":")[2],
            "HQUEUE_MASTER_KEY": f"file:{key}",
            "HQUEUE_WEBHOOK_SECRET": root,
            "HQUEUE_WEBHOOK_HOSTS": self._webhooks,
            "QUEUE_URL": self._url,
            "QUEUE_LEASE": str(self._lease),
            "QUEUE_WORK_SECONDS": str(WORK_SECONDS),
            "QUEUE_MARK": f" {self._mark}",
            "QUEUE_WEBHOOK": f"{self._webhooks}/outcomes",
            "QUEUE_WEBHOOK_PORT": self._webhooks.rpartition(":")[2],
            "QUEUE_WEBHOOK_SECRET": owner_secret(root, OWNER),
            "QUEUE_REFUSALS": str(REFUSALS),
        }

    async def carry(self, redis: "Redis", composition: ProcessGroup) -> None:
        """Have all tasks done under kills and forgeries, and note what became of them."""
        names = [*self._months, NEVER]

        async def are_up() -> bool:
            served = await _is_served(self._url) and await _is_served(self._webhooks)
            return served and await redis.llen(KEYS.ids) >= 2

        async def look() -> Snapshot:
            statuses = await queue.statuses(most=10_000)
            await self._take_replies(redis)
            await self._ask_receiver()
            to_list, webhooks, polled = self.found.delivered
            over = sum(status.has_ended for status in statuses)
            counts = {"added": len(statuses), "ended": over, "to list": to_list, "webhooks": webhooks, "polled": polled}
            held = sorted(f"{each.worker} has {each.id}" for each in (await queue.info()).held)
            refused = f"{self.found.received.get('refused', 0)} refused at first"
            late = time.monotonic() > begun + 2 * self._lease + 1  # the slow worker has acknowledged
            states = {"ended": ", ".join(held), "webhooks": refused}
            return Snapshot(counts, waiting=False, states=states, through=late and self.found.killed is not None)

        await runner.until(composition, are_up, otherwise="no answer")
        print(f"serving {self._url} until all is done", file=sys.stderr)
        self.found.aof = await _aof_of(redis)
        begun, ways = time.monotonic(), self.found.ways_of(names)
        totals = dict.fromkeys(("added", "ended"), len(names) + 1)
        totals |= {"to list": len(ways["list"]), "webhooks": len(ways["webhook"]), "polled": len(ways["poll"])}
        async with Queues(self._url, token=self._tokens["QUEUE_READER_TOKEN"]) as queues:
            queue = queues[SERVICE]
            await redis.lpush(SOURCE, *names)
            await self._cancel_one(queue)
            side = (self._kill_one(queue, composition), self._forge(), self._poll(queue))
            async with runner.meanwhile(self.found.problems, *side):
                with Bars(totals, look, width=20) as bars:
                    standstill = self._lease + RETRY_SECONDS
                    await bars.until_through(composition, standstill=standstill, killed=KILLED[:1])
            for status in await queue.statuses(most=10_000):
                self.found.tasks[status.id] = await queue.status(status.id)
        self.found.seconds = time.monotonic() - begun

    async def _take_replies(self, redis: "Redis") -> None:
        while found := await redis.rpop(encoded(KEYS.outcomes(OWNER, REPLIES))):
            self.found.replies.append(decoded(found))

    async def _ask_receiver(self) -> None:
        async with httpx.AsyncClient() as http:
            self.found.received = (await http.get(self._webhooks)).json()

    async def _poll(self, queue: Queue) -> None:
        """Wait for the ends of the tasks whose outcomes go nowhere, side by side."""
        wanted, asked = self.found.ways_of([*self._months, NEVER])["poll"], set[str]()
        async with asyncio.TaskGroup() as group:
            while len(asked) < len(wanted):
                for status in await queue.statuses(most=10_000):
                    if status.name in wanted and status.id not in asked:
                        asked.add(status.id)
                        group.create_task(self._poll_one(queue, status))
                await asyncio.sleep(0.1)

    async def _poll_one(self, queue: Queue, status: Status) -> None:
        while not (status := await queue.status(status.id, wait=20)).has_ended:
            pass
        self.found.polled.append(status)

    async def _cancel_one(self, queue: Queue) -> None:
        added = await queue.add({"month": CANCELLED, "rows": ""}, id=CANCELLED, delay=600)
        if not await queue.cancel(added.id):
            self.found.problems.append(f"task {added.id}: a worker has it, although it is delayed")

    async def _kill_one(self, queue: Queue, composition: ProcessGroup) -> None:
        """Kill the worker in the middle of a task; one that had just acknowledged is started and killed again."""
        process, worker = KILLED
        while sum(status.has_ended for status in await queue.statuses(most=10_000)) < len(self._months) / 4:
            await asyncio.sleep(0.1)  # until it has done some
        while True:
            if await _held_by(queue, worker):
                await composition.kill(process)
                if held := await _held_by(queue, worker):
                    self.found.killed = held
                    return
                await composition.start_again(process)
            await asyncio.sleep(0.02)

    async def _forge(self) -> None:
        forger = Forger(self._url, self._tokens["QUEUE_WORKER_TOKEN"], self._tokens["QUEUE_STRANGER_TOKEN"])
        self.found.refused, self.found.accepted = forger.refused, forger.accepted
        try:
            await forger.run(self._lease)
        finally:  # all tasks may be done before it has forged all that it wants
            self.found.forger_had = forger.had


async def _held_by(queue: Queue, worker: str) -> str | None:
    """Return the id of the task that ``worker`` has; None if it has none."""
    return next((each.id for each in (await queue.info()).held if each.worker == worker), None)


async def _is_served(url: str) -> bool:
    try:
        async with httpx.AsyncClient() as http:
            return (await http.get(f"{url}/ready")).status_code == 200
    except httpx.HTTPError:
        return False


async def _aof_of(redis: "Redis") -> Path | None:
    """Return the folder of the embedded server's AOF; None for a server of somebody else's."""
    if os.environ.get("REDIS"):
        return None
    try:
        found: Any = await redis.config_get("dir", "appenddirname")
    except ResponseError:
        return None
    known = {decoded(name): decoded(value) for name, value in found.items()}
    return Path(known["dir"]) / known["appenddirname"]


if __name__ == "__main__":
    main()
