"""A test with ``every``: record the injection points of each process, then run it for each fault at each point."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.testing.chaos.injection import Kind
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.recording import distinct
from penstock.testing.spec import Case, CaseResult
from penstock.testing.spec.declared import ALL, Test
from penstock.testing.spec.injection import PointInjection
from penstock.testing.spec.play import play

MAX_FAILURES: Final = 3
"""Failed runs after which no more are started."""


def has_every(test: Test) -> bool:
    return any(fault.every for step in test.steps for fault in step.faults)


async def each_point(case: Case, slots: asyncio.Semaphore) -> CaseResult:
    """Return one result for all runs of the test; ``slots`` limits those that run at a time."""
    began, runs = time.monotonic(), Runs(case, slots)
    for recording in _recordings(case):
        await runs.of_process(recording)
    failed = runs.failed
    differences = [line for result in failed for line in (_heading(result), *(f"  {x}" for x in result.differences))]
    if runs.skipped:
        differences.append(f"{runs.skipped} faults were not tried after {len(failed)} had failed")
    logs = failed[0].logs if failed else {}
    result = CaseResult(case, time.monotonic() - began, differences, [], logs)
    return replace(result, points=len(runs.points), injections=runs.count, unmet=tuple(runs.unmet))


@dataclass
class Runs:
    """The runs of one test, and their results."""

    case: Case
    slots: asyncio.Semaphore
    failed: list[CaseResult] = field(default_factory=list)
    points: set[Point] = field(default_factory=set)
    """Those at which faults were injected."""
    count: int = 0
    unmet: list[str] = field(default_factory=list)
    skipped: int = 0

    async def of_process(self, recording: PointInjection) -> None:
        """Record its points, inject a fault at each, and at those of the recoveries that this shows."""
        recorded = await self._all([recording])
        if not self.failed:
            recorded += await self._all([replace(recording, stops=True)])
        if self.failed:
            return
        points = set(distinct(set[Point]().union(*(result.seen for result in recorded))))
        injected = await self._all(_injections(recording, points))
        recovering = set[Point]().union(*(result.seen for result in injected))
        more = {point for point in distinct(points | recovering) if point.phase == Phase.RECOVER.value}
        injected += await self._all(_injections(recording, more))
        self.points |= points | more
        self.count += len(injected)
        self.unmet += [str(result.case.injection) for result in injected if not result.met]

    async def _all(self, injections: Iterable[PointInjection]) -> list[CaseResult]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(injection)) for injection in injections]
        return [result for task in tasks if (result := task.result())]

    async def _one(self, injection: PointInjection) -> CaseResult | None:
        async with self.slots:
            if len(self.failed) >= MAX_FAILURES:
                self.skipped += 1
                return None
            result = await play(replace(self.case, injection=injection))
        if not result.holds:
            self.failed.append(result)
        return result


def _recordings(case: Case) -> Iterator[PointInjection]:
    for number, step in enumerate(case.test.steps):
        for place, fault in enumerate(step.faults):
            if fault.every == ALL:
                yield from (PointInjection(number, place, part.name) for part in case.composition.parts)
            elif fault.every:
                yield PointInjection(number, place, fault.every)


def _injections(recording: PointInjection, points: Iterable[Point]) -> list[PointInjection]:
    return [replace(recording, point=point, kind=kind) for point in sorted(points) for kind in Kind]


def _heading(result: CaseResult) -> str:
    return f"{result.case.injection}:"
