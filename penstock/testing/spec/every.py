"""A test with ``every``: it runs once to record what a process asks its servers for, and once more for each point."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.testing.chaos.injection import Kind
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.recording import distinct
from penstock.testing.spec import Outcome, Trial
from penstock.testing.spec.declared import ALL, Test
from penstock.testing.spec.injection import Strike
from penstock.testing.spec.play import play

FAILURES: Final = 3
"""Runs that fail before no more are begun."""


def has_every(test: Test) -> bool:
    return any(fault.every for step in test.steps for fault in step.faults)


async def each_point(trial: Trial, slots: asyncio.Semaphore) -> Outcome:
    """Return one outcome for all runs of the test; ``slots`` bounds how many go on at a time."""
    began, runs = time.monotonic(), Runs(trial, slots)
    for strike in _aims(trial):
        await runs.of_process(strike)
    told = [line for outcome in runs.failed for line in (_heading(outcome), *(f"  {x}" for x in outcome.differences))]
    if runs.skipped:
        told.append(f"{runs.skipped} faults were not tried after {len(runs.failed)} had failed")
    logs = runs.failed[0].logs if runs.failed else {}
    outcome = Outcome(trial, time.monotonic() - began, told, [], logs)
    return replace(outcome, points=len(runs.points), strikes=runs.count, unmet=tuple(runs.unmet))


@dataclass
class Runs:
    """The runs of one test, and what came of them."""

    trial: Trial
    slots: asyncio.Semaphore
    failed: list[Outcome] = field(default_factory=list)
    points: set[Point] = field(default_factory=set)
    """Those that were struck."""
    count: int = 0
    unmet: list[str] = field(default_factory=list)
    skipped: int = 0

    async def of_process(self, aim: Strike) -> None:
        """Record what it asks for, strike it at each point, and where that showed how it recovers, there, too."""
        recorded = await self._all([aim])
        if not self.failed:
            recorded += await self._all([replace(aim, stops=True)])
        if self.failed:
            return
        points = set(distinct(set[Point]().union(*(outcome.seen for outcome in recorded))))
        struck = await self._all(_strikes(aim, points))
        recovering = set[Point]().union(*(outcome.seen for outcome in struck))
        more = {point for point in distinct(points | recovering) if point.phase == Phase.RECOVER.value}
        struck += await self._all(_strikes(aim, more))
        self.points |= points | more
        self.count += len(struck)
        self.unmet += [str(outcome.trial.strike) for outcome in struck if not outcome.met]

    async def _all(self, strikes: Iterable[Strike]) -> list[Outcome]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(strike)) for strike in strikes]
        return [outcome for task in tasks if (outcome := task.result())]

    async def _one(self, strike: Strike) -> Outcome | None:
        async with self.slots:
            if len(self.failed) >= FAILURES:
                self.skipped += 1
                return None
            outcome = await play(replace(self.trial, strike=strike))
        if not outcome.holds:
            self.failed.append(outcome)
        return outcome


def _aims(trial: Trial) -> Iterator[Strike]:
    for number, step in enumerate(trial.test.steps):
        for place, fault in enumerate(step.faults):
            if fault.every == ALL:
                yield from (Strike(number, place, part.name) for part in trial.topology.parts)
            elif fault.every:
                yield Strike(number, place, fault.every)


def _strikes(aim: Strike, points: Iterable[Point]) -> list[Strike]:
    return [replace(aim, point=point, kind=kind) for point in sorted(points) for kind in Kind]


def _heading(outcome: Outcome) -> str:
    return f"{outcome.trial.strike}:"
