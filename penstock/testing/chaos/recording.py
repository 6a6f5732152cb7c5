"""The recording of all injection points of a composition."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock.testing.chaos.lane import BASELINE_ACCOUNT, STOP_ACCOUNT, Lane
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.subject import BURST_SIZE, Subject

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

    async def _of_all(self, record: Callable[[Subject], Awaitable[set[Point]]]) -> set[Point]:
        return set[Point]().union(*await asyncio.gather(*map(record, self._lane.subjects.values())))

    async def _start(self, subject: Subject) -> set[Point]:
        await subject.process.stop()
        await subject.start()
        return subject.seen(Phase.START)

    async def _flow(self) -> set[Point]:
        """Push messages long enough for all periodic work to happen."""
        subjects = self._lane.subjects.values()
        for subject in subjects:
            subject.forget()
        until = time.monotonic() + self._lane.longest_pause
        while time.monotonic() < until:
            await self._lane.push(BASELINE_ACCOUNT, 1 + BURST_SIZE)
            await self._lane.wait_until_settled(BASELINE_ACCOUNT, 10)
            await asyncio.sleep(BURST_INTERVAL)
        return set[Point]().union(*(subject.seen(Phase.FLOW) for subject in subjects))

    async def _recovery(self, subject: Subject, flow: Sequence[Point]) -> set[Point]:
        points = set[Point]()
        for point in flow:
            if point.process == subject.name:
                await subject.kill_at(point, self._push)
                await subject.start()
                points |= subject.seen(Phase.RECOVER, point.shape)
        return points

    async def _stop(self, subject: Subject) -> set[Point]:
        """Stop a process with messages in hand, and without."""
        points = set[Point]()
        for many in (1 + BURST_SIZE, 0):
            subject.forget()
            if many:
                await self._push(many)
            await subject.process.stop()
            points |= subject.seen(Phase.STOP)
            await subject.start()
        return points

    async def _push(self, many: int) -> None:
        await self._lane.push(STOP_ACCOUNT, many)


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
