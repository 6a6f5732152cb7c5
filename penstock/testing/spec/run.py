"""Trials, many at a time, each with servers and processes of its own."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.testing.spec import Outcome, Trial
from penstock.testing.spec.every import each_point, has_every
from penstock.testing.spec.play import play

STRIKES: Final = 3
"""Runs of a test with `every` that may take the place of one: they wait most of the time."""


async def run(trials: Sequence[Trial], jobs: int, done: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
    """Their outcomes, in their order; ``jobs`` run at a time, and ``done`` hears of each that has ended."""
    slots, strikes = asyncio.Semaphore(jobs), asyncio.Semaphore(STRIKES * jobs)

    async def one(trial: Trial) -> Outcome:
        async with slots:
            outcome = await perform(trial, strikes)
        done(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:  # which waits until all have cleaned up, where gather would not
        tasks = [group.create_task(one(trial)) for trial in trials]
    return [task.result() for task in tasks]


async def perform(trial: Trial, strikes: asyncio.Semaphore | None = None) -> Outcome:
    """Run a trial to its end, which leaves nothing behind; of one with `every`, ``strikes`` runs at a time."""
    if has_every(trial.test):
        return await each_point(trial, strikes or asyncio.Semaphore(STRIKES))
    return await play(trial)
