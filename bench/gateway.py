"""Figure of services/gateway: one queue, pushed and consumed through it, compared with the same without it.

``python -m bench.gateway URL SECRET`` takes the orders of ``bench.bus_ours`` for queues at the gateway ``URL``.
"""

import asyncio
import socket
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psutil

from bench import bus_ours
from bench.bus import consumed_rate, ours
from bench.figures import Figure
from bench.side import side
from bench.testbed import PYTHON, Testbed
from penstock.bus import Bus
from tests.support.harness import Service, until

SECRET: Final = "bench-secret"


def one_queue(bed: Testbed, rounds: int, count: int, limit: float) -> Figure:
    """Measure messages a second from a producer to a consumer, both beyond the gateway, a process each."""
    ratios, through, without, costs = list[float](), list[float](), list[float](), list[float]()
    with served(bed) as (gateway, url):
        for turn in range(rounds + 1):
            with far(url) as producer, far(url) as consumer:
                before = cpu_seconds(gateway.pid)
                rate = consumed_rate(producer, consumer, count)
                cost = cpu_seconds(gateway.pid) - before
            with ours(bed) as producer, ours(bed) as consumer:
                bare = consumed_rate(producer, consumer, count)
            if turn:
                ratios.append(rate / bare)
                through.append(rate)
                without.append(bare)
                costs.append(cost / count)
        gateway.stop()
    note = (
        f"{statistics.median(through):,.0f} /s against {statistics.median(without):,.0f} /s; "
        f"{statistics.median(costs) * 1e6:.1f} us of the gateway's CPU a message"
    )
    name = f"gateway: one queue, {count:,} x 32 B pushed and consumed through it / without it"
    return Figure(name, "x", ratios, limit, at_least=True, note=note)


@contextmanager
def served(bed: Testbed) -> Iterator[tuple[Service, str]]:
    """Run the gateway; yield it and its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings: dict[str, Any] = {"listen_port": port, "secret": SECRET, "redis_namespace": "bench:gateway"}
    with Service("gateway", bed.log, redis=bed.url, listen_host="127.0.0.1", **settings) as gateway:
        until(lambda: _listens(port))
        yield gateway, f"ws://127.0.0.1:{port}/bus"


def far(url: str) -> Any:
    """Run a process whose queues are at the gateway."""
    return side(*PYTHON, "bench.gateway", url, SECRET)


def cpu_seconds(pid: int) -> float:
    """Return how long a process has run, in user and system mode."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def plan(quick: bool) -> list[Any]:
    """Return the benchmark of the gateway."""
    rounds, many = (3, 50_000) if quick else (5, 200_000)
    return [lambda bed: one_queue(bed, rounds, many, 0.3)]


class _Far(Bus):
    """A bus whose queues are at a gateway."""

    def __init__(self, url: str, secret: str) -> None:
        super().__init__()
        self._url, self._secret = url, secret

    def queue(self, name: str) -> Any:
        return self.federate(super().queue(name), self._url, secret=self._secret)


async def _main(url: str, secret: str) -> None:
    async with _Far(url, secret) as bus:
        await bus_ours.obey(bus)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:3]))
