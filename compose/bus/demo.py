"""The bus on real input, checked: ``python -m compose.bus.demo [--json]``, or ``make demo-bus``.

A Node program pushes a year of hourly temperatures, a Python program consumes them, and a second site gets daily means
through the gateway. It uses embedded servers, or those of the variables REDIS (database 0) and SITE_TWO. The exit
status is 0 only if everything arrived once and in order, and every process ended with 0 on SIGTERM.
"""

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from rich.table import Table

from compose import runner
from compose.bars import Bars, Snapshot
from compose.bus import producer
from compose.bus.names import ARRIVED, DAILY, HANDLED, KEYSPACE, OF_BUS, PAUSES, QUERIES, READINGS, SOURCE
from compose.bus.statistics import Statistics
from compose.comparison import Comparison
from compose.ending import Ending
from compose.outcome import Outcome
from compose.tables import content, listing
from penstock.bus import Bus
from penstock.composition.procfile import ProcessGroup
from penstock.connection import connect
from penstock.encoding import decoded
from penstock.errors import PenstockError
from penstock.ports import free_port
from penstock.testing.server import EmbeddedServer

HERE: Final = Path(__file__).parent
ROWS: Final = (HERE.parent / "tracked/seattle-temps.csv").read_bytes().splitlines()[1:]
BATCH: Final = 50
WIDTH: Final = 36
"""Letters of the scale."""
COLDEST, WARMEST = 20.0, 100.0
"""Ends of the scale (F)."""

Month = Mapping[str, float]


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    runner.main("compose.bus.demo", __doc__, lambda url: run(url, rows, directory))


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Send ``rows``, oldest first, through the composition in ``directory`` on the server at ``url``."""
    why = "it was asked for" if os.environ.get("PRODUCER") == "python" else producer.BUSMQ.install()
    print(f"producer: {'Node' if not why else f'Python, as {why}'}", file=sys.stderr)
    port, secret = free_port(), secrets.token_hex(16)
    async with AsyncExitStack() as stack:
        there = os.environ.get("SITE_TWO") or (await stack.enter_async_context(EmbeddedServer())).url
        demo = _Demo(url, await stack.enter_async_context(connect(there)), rows, "Python" if why else "Node's busmq")
        return await runner.run_composition(
            url,
            directory,
            KEYSPACE,
            demo.carry,
            demo.evaluate,
            prepare=_clear_bus,
            other_servers=[demo.site_two],
            process_variables={
                "producer": {"PRODUCER": "python" if why else "node"},
                "gateway": {"GATEWAY_LISTEN_PORT": str(port)},
                "site-two": {"SITE_TWO": there, "GATEWAY_URL": f"ws://localhost:{port}/bus"},
            },
            GATEWAY_SECRET=secret,
        )


class _Demo:
    """One run."""

    def __init__(self, url: str, site_two: "Redis", rows: Sequence[bytes], producer: str) -> None:
        self._url, self.site_two, self._rows, self._producer = url, site_two, rows, producer
        self._wanted = Statistics()
        days = (self._wanted.add(place, row) for place, row in enumerate(rows, start=1))
        self._days = [f"{day[0]},{day[1]}".encode() for day in days if day]
        self._months: dict[str, Month] = {}
        """What the service answers; nothing for a month that it does not answer for."""
        self._seconds = 0.0

    async def carry(self, redis: "Redis", composition: ProcessGroup) -> None:
        """Push all rows and wait until they are through, or no longer can be; then ask for each month."""

        async def look() -> Snapshot:
            waiting = await KEYSPACE.left(redis) or await _in_queues(redis)
            counts = {"handled": await redis.llen(HANDLED), "site two": await self.site_two.hlen(ARRIVED)}
            return Snapshot(counts, bool(waiting))

        begun, total = time.monotonic(), len(self._rows)
        with Bars({"pushed": total, "handled": total, "site two": len(self._days)}, look) as bars:
            await bars.push(redis, SOURCE, self._rows, BATCH)
            await bars.until_through(composition)
        self._seconds = time.monotonic() - begun
        async with Bus(self._url, patience=10) as bus:
            queries = bus.service(QUERIES)
            await queries.connect()
            for month in self._wanted.months:
                try:
                    self._months[month] = await queries.request({"month": month}, timeout=5)
                except PenstockError as error:
                    print(f"{month}: {error}", file=sys.stderr)

    async def evaluate(self, redis: "Redis", statuses: Mapping[str, int]) -> Outcome:
        """Compare what the servers have with the rows."""
        means = (await self.site_two.hgetall(ARRIVED)).items()
        arrived = [f"{decoded(day)},{decoded(mean)}".encode() for day, mean in means]
        readings = await Comparison.read(redis, HANDLED, self._rows, name="readings")
        days = Comparison.compare("daily means", self._days, arrived, ordered=False)
        ending, left = await Ending.read(KEYSPACE, statuses, redis), await _in_queues(redis)
        answers = {month: (self._months.get(month), self._wanted.answer(month)) for month in self._wanted.months}
        problems = [f"month {month}: {answer}" for month, (answer, wanted) in answers.items() if answer != wanted]
        pauses, rate = int(await redis.get(PAUSES) or 0), readings.got / max(self._seconds, 1e-6)
        return Outcome(
            ending,
            comparisons=[readings, days],
            problems=problems + ([f"the queues: {left:,} messages left behind"] if left else []),
            shown=[
                _scale(self._months),
                content([readings, days], "daily means: at site two, through the gateway"),
                f"Producer: {self._producer}; paused {pauses} times; {rate:,.0f} readings a second",
                ending.line,
            ],
            success="Every reading was handled once and in order; every day is at site two",
            data={
                "producer": self._producer,
                "readings": readings.figures(),
                "days": days.figures(),
                "months": self._months,
                "pauses": pauses,
                "seconds": self._seconds,
            },
        )


async def _clear_bus(redis: "Redis") -> Mapping[str, str]:
    """Delete what a demo before has left in the bus; return no variables."""
    for pattern in OF_BUS:
        async for key in redis.scan_iter(pattern, count=1_000):
            await redis.unlink(key)
    return {}


async def _in_queues(redis: "Redis") -> int:
    """Return how many messages wait in the queues, or are not acknowledged."""
    names = [f"bus:queue:{name}:{kind}" for name in (READINGS, DAILY) for kind in ("messages", "toack")]
    return sum([await redis.llen(name) for name in names]) // 2


def _scale(months: Mapping[str, Month]) -> Table:
    names = ("mean", "least", "most")
    headings = ("month", "hours", *names, f"{COLDEST:.0f}{WARMEST:>{WIDTH - 2}.0f}")
    rows = (
        (month, f"{found['hours']:.0f}", *(f"{found[name]:.1f}" for name in names), _bar(found))
        for month, found in months.items()
    )
    return listing("What the service answered (F)", headings, rows, numbers=range(1, 5), borders=True)


def _bar(found: Month) -> str:
    """Draw the range of a month, and its mean."""
    shares = ((found[name] - COLDEST) / (WARMEST - COLDEST) for name in ("least", "mean", "most"))
    least, mean, most = (min(max(round(share * (WIDTH - 1)), 0), WIDTH - 1) for share in shares)
    line = [" "] * WIDTH
    line[least : most + 1] = "─" * (most + 1 - least)
    line[mean] = "●"
    return "".join(line)


if __name__ == "__main__":
    main()
