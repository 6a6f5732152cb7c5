"""A runner of several cases at a time, each with servers and processes of its own."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.testing.spec import Case, CaseResult
from penstock.testing.spec.every import each_point, has_every
from penstock.testing.spec.play import play

INJECTIONS_PER_JOB: Final = 3
"""Runs of a test with `every` that may go on for each job: they wait most of the time."""


async def run(
    cases: Sequence[Case], jobs: int, done: Callable[[CaseResult], None] = lambda _: None
) -> list[CaseResult]:
    """Return the results in order; ``jobs`` cases run at a time, and ``done`` is called with each result."""
    slots, injections = asyncio.Semaphore(jobs), asyncio.Semaphore(INJECTIONS_PER_JOB * jobs)

    async def one(case: Case) -> CaseResult:
        async with slots:
            result = await perform(case, injections)
        done(result)
        return result

    async with asyncio.TaskGroup() as group:  # unlike gather, it waits until all have cleaned up
        tasks = [group.create_task(one(case)) for case in cases]
    return [task.result() for task in tasks]


async def perform(case: Case, injections: asyncio.Semaphore | None = None) -> CaseResult:
    """Run a case to its end and clean up; ``injections`` limits the runs of one with `every`."""
    if has_every(case.test):
        return await each_point(case, injections or asyncio.Semaphore(INJECTIONS_PER_JOB))
    return await play(case)
