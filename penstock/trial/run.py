"""Trials, many at a time, each with servers and processes of its own."""

import asyncio
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from penstock.errors import PenstockError
from penstock.names import encoded
from penstock.rehearsal import Rehearsal
from penstock.topology import Place
from penstock.trial import Outcome, Trial
from penstock.trial.declared import WITHIN, Expectation, Step
from penstock.trial.faults import LOOK, Faults
from penstock.trial.judge import differences, messages

BATCH: Final = 500
"""Messages that one LPUSH carries."""
REREAD: Final = 0.5
"""Seconds after which lists are read again whose lengths are what they were."""
AWAKE: Final = 1.0
"""Seconds without a change after which a program that was started again, and registers nowhere, counts as awake."""
LAST_LINES: Final = 12
"""Of each process's log."""


async def run(trials: Sequence[Trial], jobs: int, done: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
    """Their outcomes, in their order; ``jobs`` run at a time, and ``done`` hears of each that has ended."""
    slots = asyncio.Semaphore(jobs)

    async def one(trial: Trial) -> Outcome:
        async with slots:
            outcome = await perform(trial)
        done(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:  # which waits until all have cleaned up, where gather would not
        tasks = [group.create_task(one(trial)) for trial in trials]
    return [task.result() for task in tasks]


async def perform(trial: Trial) -> Outcome:
    """Run a trial to its end, which leaves nothing behind."""
    began = time.monotonic()
    told, faults, logs = list[str](), list[str](), dict[str, list[str]]()
    try:
        aof = any(fault.verb == "restart" for step in trial.test.steps for fault in step.faults)
        async with Rehearsal(trial.topology, aof=aof) as rehearsal:
            play = _Play(trial, rehearsal)
            told = await play.perform()
            faults = [f"{fault}, {at:.2f} s after the start" for fault, at in play.faults.injected]
            if told:
                logs = {name: each.said().splitlines()[-LAST_LINES:] for name, each in rehearsal.performers.items()}
    except PenstockError as error:
        told = [str(error)]
    return Outcome(trial, time.monotonic() - began, told, faults, logs)


class _Play:
    """One run of a trial's steps on a rehearsal."""

    def __init__(self, trial: Trial, rehearsal: Rehearsal) -> None:
        self._trial, self._rehearsal, self._places = trial, rehearsal, trial.places
        self.faults = Faults(rehearsal, trial.places)
        self._pushed: dict[str, list[bytes]] = {}

    async def perform(self) -> list[str]:
        """What differs from what is expected in the first step that fails."""
        try:
            await self.faults.start_all()
        except PenstockError as error:
            return [str(error)]
        steps = self._trial.test.steps
        for number, step in enumerate(steps, start=1):
            try:
                told = await self._step(step)
            except (PenstockError, RedisError) as error:
                told = [str(error)]
            if told:
                return told if len(steps) == 1 else [f"step {number} of {len(steps)}:", *(f"  {line}" for line in told)]
        return []

    async def _step(self, step: Step) -> list[str]:
        within = step.within or self._trial.test.within or WITHIN
        deadline = time.monotonic() + within
        try:
            async with asyncio.timeout(within):
                await self._carry(step)
        except TimeoutError:
            never = [fault for fault in step.faults if fault not in self.faults.struck]
            told = [f"{fault} did not come about within {within:g} s" for fault in never]
            return [*(told or [f"not all was pushed and mended within {within:g} s"]), *await self._judge(step)]
        return await self._until_as_expected(step, deadline)

    async def _carry(self, step: Step) -> None:
        """Push all, break what is to be broken on the way, and mend it."""
        tasks = [asyncio.create_task(self.faults.inject(fault)) for fault in step.faults if fault.seen]
        faults = sorted((fault for fault in step.faults if not fault.seen), key=lambda fault: fault.count)
        try:
            count = 0
            for key, given in step.push.items():
                found = given.read(self._trial.directory, {})
                while found:
                    while faults and faults[0].count <= count:
                        tasks.append(await self.faults.begin(faults.pop(0)))
                    most = int(min([BATCH, *(fault.count - count for fault in faults[:1])]))
                    batch, found = found[:most], found[most:]
                    await self._push(key, batch)
                    count += len(batch)
            tasks += [await self.faults.begin(fault) for fault in faults]
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _push(self, key: str, batch: list[bytes]) -> None:
        place = self._places.find(key)
        async with self.faults.held(place) as redis:
            await redis.lpush(encoded(place.key), *batch)
        self._pushed.setdefault(key, []).extend(batch)

    async def _until_as_expected(self, step: Step, deadline: float) -> list[str]:
        """What differs in the end, when nothing moves any more; until the deadline it may still become right."""
        programs = any(part.namespace is None for part in self.faults.restarted)
        quiet = max(self._trial.test.quiet, AWAKE if programs else 0)
        last: list[int] = []
        since = judged = -inf
        while True:
            now = time.monotonic()
            if crashed := self.faults.crashed():
                return [f"{crashed} ended by itself, before anything was broken", *await self._judge(step)]
            lengths = [await self._length(place) for place in self._watched(step)]
            if lengths != last:
                last, since, judged = lengths, now, -inf
            if now >= deadline or (now - since >= quiet and now - judged >= REREAD):
                judged = now
                told = await self._judge(step)
                if not told or now >= deadline:
                    return told
            await asyncio.sleep(LOOK)

    async def _judge(self, step: Step) -> list[str]:
        told = list[str]()
        for key, expected in step.expect.items():
            told += [f"{key}: {line}" if line[0] != " " else line for line in await self._compared(key, expected)]
        expected_places = [self._places.find(key) for key in step.expect]
        for place, name in self._taken().items():
            length = await self._length(place)
            if length and place not in expected_places:
                told.append(f"{place.key}: {messages(length)} left in it, for {name}")
        return told

    async def _compared(self, key: str, expected: Expectation) -> list[str]:
        place = self._places.find(key)
        try:
            got: list[Any] = await self._rehearsal.client(place.server).lrange(encoded(place.key), 0, -1)
        except ResponseError as error:
            return [f"cannot be read as a list: {error}"]
        return differences(expected, got[::-1], lambda given: given.read(self._trial.directory, self._pushed))

    def _taken(self) -> dict[Place, str]:
        """What the processes take messages from and keep them in, and who that is: empty when all is done."""
        parts = self._trial.topology.parts
        return {end.place: part.name for part in parts for end in part.using("reads", "keeps") if end.kind == "list"}

    def _watched(self, step: Step) -> list[Place]:
        ends = (end for part in self._trial.topology.parts for end in part.ends if end.kind == "list")
        return list(dict.fromkeys([*map(self._places.find, step.expect), *(end.place for end in ends)]))

    async def _length(self, place: Place) -> int:
        try:
            return int(await self._rehearsal.client(place.server).llen(encoded(place.key)))
        except ResponseError:
            return 0  # no list; whoever expects one will hear of it
