"""The bus on real input, checked: ``python -m compose.bus.demo [--json]``, or ``make demo-bus``.

A Node program pushes a year of hourly temperatures, a Python program consumes them, and a second site gets daily means
through the gateway. It uses embedded servers, or those of the variables REDIS (database 0) and SITE_TWO. The exit
status is 0 only if everything arrived once and in order, and every process ended with 0 on SIGTERM.
"""

import os
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from compose import runner
from compose.bus import producer
from compose.bus.keyspace import KEYSPACE, clear_bus, in_queues
from compose.bus.names import ARRIVED, HANDLED, QUERIES, SOURCE
from compose.bus.outcome import Month, Outcome, read_outcome
from compose.bus.show import show
from compose.runner import Snapshot
from penstock.bus import Bus
from penstock.composition.procfile import ProcessGroup
from penstock.connection import connect
from penstock.errors import PenstockError
from penstock.ports import free_port
from penstock.testing.server import EmbeddedServer

HERE: Final = Path(__file__).parent
ROWS: Final = (HERE.parent / "tracked/seattle-temps.csv").read_bytes().splitlines()[1:]
BATCH: Final = 50


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    runner.main("compose.bus.demo", __doc__, lambda url: run(url, rows, directory), show)


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Send ``rows``, oldest first, through the composition in ``directory`` on the server at ``url``.

    Raise ``PenstockError`` if a server holds data of a composition that is no demo.
    """
    why = "it was asked for" if os.environ.get("PRODUCER") == "python" else producer.BUSMQ.install()
    words = ["python"] if why else []
    print(f"producer: {'Node' if not why else f'Python, as {why}'}", file=sys.stderr)
    months, seconds = dict[str, Month](), [0.0]
    port, secret = free_port(), secrets.token_hex(16)
    async with AsyncExitStack() as stack:
        there = os.environ.get("SITE_TWO") or (await stack.enter_async_context(EmbeddedServer())).url
        site_two = await stack.enter_async_context(connect(there))

        async def carry(redis: "Redis", composition: ProcessGroup) -> None:
            begun = time.monotonic()
            await _carry(redis, site_two, rows, composition)
            seconds[0] = time.monotonic() - begun
            months.update(await _ask(url, rows))

        async with connect(url) as redis:
            await KEYSPACE.prepare(redis)
            await clear_bus(redis)
        shared = {"GATEWAY_SECRET": secret}
        variables = {
            "producer": {"PRODUCER": "python" if words else "node"},
            "gateway": {**shared, "GATEWAY_LISTEN_PORT": str(port)},
            "site-two": {**shared, "SITE_TWO": there, "GATEWAY_URL": f"ws://localhost:{port}/bus"},
        }
        return await runner.run_composition(
            url,
            directory,
            KEYSPACE,
            carry,
            lambda redis, statuses: read_outcome(
                redis,
                site_two,
                rows,
                months,
                statuses,
                producer="Python" if words else "Node's busmq",
                seconds=seconds[0],
            ),
            other_servers=[site_two],
            process_variables=variables,
        )


async def _carry(redis: "Redis", site_two: "Redis", rows: Sequence[bytes], composition: ProcessGroup) -> None:
    """Push ``rows`` and wait until they are through, or no longer can be; show progress bars."""
    days = sum(row.partition(b",")[0].endswith(b"23:00") for row in rows)
    with runner.progress() as progress:
        pushed = progress.add_task("pushed", total=len(rows))
        handled = progress.add_task("handled", total=len(rows))
        arrived = progress.add_task("site two", total=days)

        async def take_snapshot() -> Snapshot:
            waiting = await KEYSPACE.left(redis) or await in_queues(redis)
            now = await redis.llen(HANDLED), await site_two.hlen(ARRIVED)
            progress.update(handled, completed=now[0])
            progress.update(arrived, completed=now[1])
            return Snapshot(now, through=now[0] >= len(rows) and now[1] >= days, waiting=bool(waiting))

        await runner.push(redis, SOURCE, rows, BATCH, lambda amount: progress.advance(pushed, amount))
        await runner.until_through(composition, take_snapshot)


async def _ask(url: str, rows: Sequence[bytes]) -> dict[str, Month]:
    """Return what the service answers for each month of ``rows``; nothing for one that it does not answer for."""
    found = dict[str, Month]()
    async with Bus(url, patience=10) as bus:
        queries = bus.service(QUERIES)
        await queries.connect()
        for month in dict.fromkeys(row[:7].decode() for row in rows):
            try:
                found[month] = await queries.request({"month": month}, timeout=5)
            except PenstockError as error:
                print(f"{month}: {error}", file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
