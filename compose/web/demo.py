"""The web composition under a load, checked: ``python -m compose.web.demo [--json]``, or ``make demo-web``.

A worker, an importer and a router are killed under the load, and started again a second later, as a container runtime
does. It uses an embedded server, or the one of the variable REDIS. The exit status is 0 only if no idempotent request
failed, no POST was done twice, all sums hold, and every process ended with 0 on SIGTERM.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from rich.progress import TextColumn

from compose import runner
from compose.runner import Snapshot
from compose.web.client import Client, is_served
from compose.web.keyspace import KEYSPACE
from compose.web.load import Load
from compose.web.names import IMPORTER, WORKERS, registration_of
from compose.web.outcome import Outcome, read_outcome
from compose.web.show import show
from penstock.composition.procfile import ProcessGroup
from penstock.errors import PenstockError
from penstock.ports import free_port

HERE: Final = Path(__file__).parent
HOST: Final = "127.0.0.1"
RATE: Final = 200.0
"""Requests a second."""
STEP_SECONDS: Final = 4.0
DOWN_SECONDS: Final = 1.0
"""Seconds until a killed process is started again."""
KILLED: Final = {"worker-1": "worker killed", "importer-one": "importer killed", "router": "router killed"}
"""Processes, each with the name of its step."""


def main(directory: Path = HERE, rate: float = RATE, step: float = STEP_SECONDS) -> None:
    runner.main("compose.web.demo", __doc__, lambda url: run(url, directory, rate, step), show)


async def run(url: str, directory: Path = HERE, rate: float = RATE, step: float = STEP_SECONDS) -> Outcome:
    """Send ``rate`` requests a second to the composition in ``directory``, and kill a process every ``step`` seconds.

    Raise ``PenstockError`` if the server holds data of this composition that no demo put there.
    """
    port = free_port()
    demo = _Demo(port, rate, step)
    return await runner.run_composition(
        url,
        directory,
        KEYSPACE,
        demo.carry,
        lambda redis, statuses: read_outcome(redis, demo.load.steps, demo.load.noted, statuses),
        HIMPORTER_LISTEN_PORT=str(port),
    )


class _Demo:
    """One run: the load, and the kills meanwhile."""

    def __init__(self, port: int, rate: float, step: float) -> None:
        self._port, self._step = port, step
        self._seconds = step * (len(KILLED) + 2) + DOWN_SECONDS * len(KILLED)
        self._total = round(rate * self._seconds)
        self.load = Load(HOST, port, rate)

    async def carry(self, redis: "Redis", composition: ProcessGroup) -> None:
        """Wait until all is up, run the load, and wait until nothing is in flight."""
        await self._until_up(redis, composition)
        print(f"serving http://{HOST}:{self._port}/ until the load is over, {self._total:,} requests", file=sys.stderr)
        with runner.progress(TextColumn("{task.fields[state]}"), width=20) as progress:
            bar = progress.add_task("answered", total=self._total, state="")

            def tick() -> None:
                name = self.load.steps[-1].name
                progress.update(bar, advance=1, state=name)

            self.load.tick = tick
            self.load.begin("all run")
            kills = asyncio.create_task(self._kill_all(redis, composition))
            await self.load.run(self._seconds)
            await kills

        async def take_snapshot() -> Snapshot:
            waiting = await KEYSPACE.left(redis)
            return Snapshot((sum(waiting.values()),), through=not waiting, waiting=False)

        await runner.until_through(composition, take_snapshot)

    async def _kill_all(self, redis: "Redis", composition: ProcessGroup) -> None:
        for name, title in KILLED.items():
            await asyncio.sleep(self._step)
            self.load.begin(title)
            pid = await composition.kill(name)
            await asyncio.sleep(DOWN_SECONDS)
            await KEYSPACE.expire_registration(redis, pid)
            await composition.start_again(name)
        await asyncio.sleep(self._step)
        self.load.begin("all run again")

    async def _until_up(self, redis: "Redis", composition: ProcessGroup) -> None:
        """Wait until both importers listen, each worker is registered, and a page comes."""
        until, client = time.monotonic() + runner.MAX_SECONDS, Client(HOST, self._port)
        while not (
            await redis.llen(IMPORTER.ids) >= 2
            and await redis.exists(*map(registration_of, WORKERS)) == len(WORKERS)
            and await is_served(client)
        ):
            if time.monotonic() > until or len(composition.running) < len(composition.commands):
                raise PenstockError(f"the composition did not start: {composition.statuses or 'no page comes'}")
            await asyncio.sleep(0.05)
        client.close()


if __name__ == "__main__":
    main()
