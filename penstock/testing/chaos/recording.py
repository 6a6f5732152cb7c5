"""The recording of all injection points of a composition."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock.testing.chaos.lane import BASELINE_ACCOUNT, BURST_SIZE, STOP_ACCOUNT, Lane
from penstock.testing.chaos.points import Phase, Point

BURST_INTERVAL = 0.5
"""Seconds between two bursts of messages."""


class Recording:
    """A recorder of the points of all processes of ``lane``: at their start, with messages, after a kill, at a stop.

    The commands of a start after a kill, or of a stop with messages in hand, often come at other times, too: these are
    counted once.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    async def points(self) -> list[Point]:
        points = await self._of_all(self._start)
        flow = await self._flow()
        points |= flow
        points |= await self._of_all(lambda process: self._recovery(process, sorted(flow)))
        points |= await self._of_all(self._stop)
        await self._lane.wait_until_settled(STOP_ACCOUNT, 10)
        return sorted(distinct(points))

    async def _of_all(self, record: Callable[[str], Awaitable[set[Point]]]) -> set[Point]:
        return set[Point]().union(*await asyncio.gather(*map(record, self._lane.processes)))

    async def _start(self, process: str) -> set[Point]:
        await self._lane.processes[process].stop()
        self._forget(process)
        await self._begin(process)
        return self._seen(process, Phase.START)

    async def _flow(self) -> set[Point]:
        """Push messages long enough for all periodic work to happen."""
        for process in self._lane.processes:
            self._forget(process)
        until = time.monotonic() + self._lane.longest_pause
        while time.monotonic() < until:
            await self._lane.push(BASELINE_ACCOUNT, 1 + BURST_SIZE)
            await self._lane.wait_until_settled(BASELINE_ACCOUNT, 10)
            await asyncio.sleep(BURST_INTERVAL)
        return set[Point]().union(*(self._seen(process, Phase.FLOW) for process in self._lane.processes))

    async def _recovery(self, process: str, flow: Sequence[Point]) -> set[Point]:
        points = set[Point]()
        for point in flow:
            if point.process == process:
                await self._lane.kill_at(point, STOP_ACCOUNT)
                self._forget(process)
                await self._begin(process)
                points |= self._seen(process, Phase.RECOVER, point.shape)
        return points

    async def _stop(self, process: str) -> set[Point]:
        """Stop a process with messages in hand, and without."""
        points = set[Point]()
        for many in (1 + BURST_SIZE, 0):
            self._forget(process)
            if many:
                await self._lane.push(STOP_ACCOUNT, many)
            await self._lane.processes[process].stop()
            points |= self._seen(process, Phase.STOP)
            await self._begin(process)
        return points

    async def _begin(self, process: str) -> None:
        await self._lane.processes[process].start()
        await self._lane.wait_until_started(process)

    def _forget(self, process: str) -> None:
        for proxy in self._lane.proxies[process].values():
            proxy.seen.clear()

    def _seen(self, process: str, phase: Phase, after: str = "") -> set[Point]:
        proxies = self._lane.proxies[process].items()
        return {Point(process, phase.value, server, shape, after) for server, proxy in proxies for shape in proxy.seen}


def distinct(points: set[Point]) -> set[Point]:
    """Return ``points`` without those of stops and recoveries whose command also comes at other times."""
    kept = dict[tuple[str, str, str], Point]()
    rank = [Phase.START.value, Phase.FLOW.value, Phase.STOP.value, Phase.RECOVER.value]
    usual = {point for point in points if point.phase in rank[:2]}
    known = {(point.process, point.server, point.shape) for point in usual}
    for point in sorted(points - usual, key=lambda each: (rank.index(each.phase), each)):
        name = (point.process, point.server, point.shape)
        if name not in known:
            kept.setdefault(name, point)
    return usual | set(kept.values())
