"""Cases, many at a time, each with servers and processes of its own."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.testing.spec import Case, CaseResult
from penstock.testing.spec.every import each_point, has_every
from penstock.testing.spec.play import play

INJECTIONS_PER_JOB: Final = 3
"""Runs of a test with `every` that may take the place of one: they wait most of the time."""


async def run(
    cases: Sequence[Case], jobs: int, done: Callable[[CaseResult], None] = lambda _: None
) -> list[CaseResult]:
    """Their results, in their order; ``jobs`` run at a time, and ``done`` hears of each that has ended."""
    slots, injections = asyncio.Semaphore(jobs), asyncio.Semaphore(INJECTIONS_PER_JOB * jobs)

    async def one(case: Case) -> CaseResult:
        async with slots:
            result = await perform(case, injections)
        done(result)
        return result

    async with asyncio.TaskGroup() as group:  # which waits until all have cleaned up, where gather would not
        tasks = [group.create_task(one(case)) for case in cases]
    return [task.result() for task in tasks]


async def perform(case: Case, injections: asyncio.Semaphore | None = None) -> CaseResult:
    """Run a case to its end, which leaves nothing behind; of one with `every`, ``injections`` runs at a time."""
    if has_every(case.test):
        return await each_point(case, injections or asyncio.Semaphore(INJECTIONS_PER_JOB))
    return await play(case)
