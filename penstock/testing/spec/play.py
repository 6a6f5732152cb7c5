"""One run of a case: start its processes, carry out its steps, and compare their results."""

import asyncio
import time
from contextlib import AsyncExitStack
from math import inf
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.base.shape import Place
from penstock.testing.chaos.lane import FAST_SETTINGS
from penstock.testing.sandbox import POLL_SECONDS, Sandbox
from penstock.testing.spec import Case, CaseResult
from penstock.testing.spec.declared import STEP_SECONDS, Expectation, Step
from penstock.testing.spec.faults import Faults
from penstock.testing.spec.injection import MEET_SECONDS, Injector
from penstock.testing.spec.judge import differences, messages

BATCH_MESSAGES: Final = 500
"""Messages in one LPUSH."""
PORTIONS: Final = 6
"""Portions in which messages are pushed until a fault is injected."""
REREAD_SECONDS: Final = 0.5
"""Seconds after which lists of unchanged length are compared again."""
AWAKE_SECONDS: Final = 1.0
"""Seconds without a change after which a restarted program, which does not register, counts as up."""
LOG_LINES: Final = 12
"""Last lines of each log in a result."""


async def play(case: Case) -> CaseResult:
    """Run a case to its end and remove everything that it started."""
    began = time.monotonic()
    lines, faults, logs = list[str](), list[str](), dict[str, list[str]]()
    injector = Injector(case.injection) if case.injection else None
    try:
        async with AsyncExitStack() as exits:
            aof = any(fault.verb == "restart" for step in case.test.steps for fault in step.faults)
            route = (await exits.enter_async_context(injector)).route if injector else None
            sandbox = Sandbox(case.composition, route=route, overrides=FAST_SETTINGS if injector else {}, aof=aof)
            if injector:
                injector.watch(sandbox)
            await exits.enter_async_context(sandbox)
            one = _Play(case, sandbox, injector)
            lines = await one.perform()
            faults = [f"{fault}, {at:.2f} s after the start" for fault, at in one.faults.injected]
            if lines:
                logs = {name: each.log_tail().splitlines()[-LOG_LINES:] for name, each in sandbox.processes.items()}
    except PenstockError as error:
        lines = [str(error)]
    seen, met = (frozenset(injector.found), injector.met) if injector else (frozenset(), True)
    return CaseResult(case, time.monotonic() - began, lines, faults, logs, seen, met)


class _Play:
    """One run of the steps of a case in a sandbox."""

    def __init__(self, case: Case, sandbox: Sandbox, injector: Injector | None) -> None:
        self._case, self._sandbox, self._places, self._injector = case, sandbox, case.places, injector
        self.faults = Faults(sandbox, case.places, injector)
        self._pushed: dict[str, list[bytes]] = {}

    async def perform(self) -> list[str]:
        """Carry out the steps. Return the differences of the first that fails, or []."""
        try:
            await self.faults.start_all()
            if self._injector:
                await self._injector.begin()
        except PenstockError as error:
            return [str(error)]
        steps = self._case.test.steps
        for number, step in enumerate(steps, start=1):
            try:
                lines = await self._step(self._with_own_fault(number - 1, step))
            except (PenstockError, RedisError) as error:
                lines = [str(error)]
            if lines:
                return (
                    lines if len(steps) == 1 else [f"step {number} of {len(steps)}:", *(f"  {line}" for line in lines)]
                )
        if self._injector:
            await self._injector.end()
        return []

    def _with_own_fault(self, number: int, step: Step) -> Step:
        """Return the step with, of its faults at every point, only the one of this run."""
        injection = self._injector.injection if self._injector else None
        ours = injection is not None and injection.step == number and (injection.point is not None or injection.stops)
        faults = [
            fault.model_copy(update={"every": injection.process}) if fault.every and injection else fault
            for place, fault in enumerate(step.faults)
            if not fault.every or (ours and injection and place == injection.place)
        ]
        return step.model_copy(update={"faults": faults})

    async def _step(self, step: Step) -> list[str]:
        within = step.within or self._case.test.within or STEP_SECONDS
        deadline = time.monotonic() + within
        if self._injector:
            self._injector.timeout = min(MEET_SECONDS, within / 2)
        try:
            async with asyncio.timeout(within):
                await self._carry(step)
        except TimeoutError:
            never = [fault for fault in step.faults if fault not in self.faults.broken]
            lines = [f"{fault} did not come about within {within:g} s" for fault in never]
            return [*(lines or [f"not all was pushed and mended within {within:g} s"]), *await self._judge(step)]
        return await self._until_as_expected(step, deadline)

    async def _carry(self, step: Step) -> None:
        """Push all messages, inject the faults at their triggers, and repair them."""
        tasks = [asyncio.create_task(self.faults.inject(fault)) for fault in step.faults if fault.seen]
        faults = sorted((fault for fault in step.faults if not fault.seen), key=lambda fault: fault.count)
        try:
            count = 0
            for key, given in step.push.items():
                found = given.load(self._case.directory, {})
                total = len(found)
                while found:
                    while faults and faults[0].count <= count:
                        tasks.append(await self.faults.begin(faults.pop(0)))
                    most = int(min([self._portion(total), *(fault.count - count for fault in faults[:1])]))
                    batch, found = found[:most], found[most:]
                    await self._push(key, batch)
                    count += len(batch)
                    if self._injector:
                        await self._injector.pace()
            tasks += [await self.faults.begin(fault) for fault in faults]
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def _portion(self, total: int) -> int:
        """Return how many of ``total`` messages to push at once: a portion until a fault is injected."""
        return max(1, total // PORTIONS) if self._injector and self._injector.fault else BATCH_MESSAGES

    async def _push(self, key: str, batch: list[bytes]) -> None:
        place = self._places.find(key)
        async with self.faults.held(place) as redis:
            await redis.lpush(encoded(place.key), *batch)
        self._pushed.setdefault(key, []).extend(batch)

    async def _until_as_expected(self, step: Step, deadline: float) -> list[str]:
        """Compare whenever all lists are quiet, until nothing differs or the deadline passes. Return what differs."""
        programs = any(part.namespace is None for part in self.faults.restarted)
        quiet = max(self._case.test.quiet, AWAKE_SECONDS if programs else 0)
        last: list[int] = []
        since = judged = -inf
        while True:
            now = time.monotonic()
            if crashed := self.faults.crashed():
                return [f"{crashed} ended by itself, before anything was broken", *await self._judge(step)]
            lengths = [await self._length(place) for place in self._watched(step)]
            if lengths != last:
                last, since, judged = lengths, now, -inf
            if now >= deadline or (now - since >= quiet and now - judged >= REREAD_SECONDS):
                judged = now
                lines = await self._judge(step)
                if not lines or now >= deadline:
                    return lines
            await asyncio.sleep(POLL_SECONDS)

    async def _judge(self, step: Step) -> list[str]:
        lines = list[str]()
        for key, expected in step.expect.items():
            lines += [f"{key}: {line}" if line[0] != " " else line for line in await self._compared(key, expected)]
        expected_places = [self._places.find(key) for key in step.expect]
        for place, name in self._taken().items():
            length = await self._length(place)
            if length and place not in expected_places:
                lines.append(f"{place.key}: {messages(length)} left in it, for {name}")
        return lines

    async def _compared(self, key: str, expected: Expectation) -> list[str]:
        place = self._places.find(key)
        try:
            got: list[Any] = await self._sandbox.client(place.server).lrange(encoded(place.key), 0, -1)
        except ResponseError as error:
            return [f"cannot be read as a list: {error}"]
        return differences(expected, got[::-1], lambda given: given.load(self._case.directory, self._pushed))

    def _taken(self) -> dict[Place, str]:
        """Return the lists that processes read or keep messages in, with their names; all must be empty in the end."""
        parts = self._case.composition.parts
        return {end.place: part.name for part in parts for end in part.using("reads", "keeps") if end.kind == "list"}

    def _watched(self, step: Step) -> list[Place]:
        ends = (end for part in self._case.composition.parts for end in part.ends if end.kind == "list")
        return list(dict.fromkeys([*map(self._places.find, step.expect), *(end.place for end in ends)]))

    async def _length(self, place: Place) -> int:
        try:
            return int(await self._sandbox.client(place.server).llen(encoded(place.key)))
        except ResponseError:
            return 0  # not a list: `_compared` reports it if one is expected
