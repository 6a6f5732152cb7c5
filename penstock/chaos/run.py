"""A whole run of chaos: points are recorded, faults are made of them, and several stages work them off side by side."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from penstock.audit import audit
from penstock.chaos.chances import FAULTS, PAIRED, WRONG_TYPE
from penstock.chaos.faults import Injection
from penstock.chaos.messages import Account, Routes
from penstock.chaos.points import Point
from penstock.chaos.recording import Recording
from penstock.chaos.stage import CALM, Stage, Times, fed
from penstock.chaos.strikes import Kind
from penstock.errors import PenstockError
from penstock.keys import Keys
from penstock.ledger import ledger
from penstock.topology import Place, Topology, server_of

ROUNDS: Final = 1
"""How often each fault by chance happens."""
LAST: Final = 10.0
"""Seconds that what is still missing at the end is waited for."""


NAMES: Final = frozenset(name.lower() for name in (*(kind.value for kind in Kind), *FAULTS))


@dataclass(frozen=True)
class Chosen:
    """What of all that could be done is to be done."""

    seed: int
    faults: Sequence[str] = ()
    """Their names, or parts of some; none for all."""
    process: str | None = None
    point: str | None = None
    """Part of a point's name."""
    rounds: int = ROUNDS
    lanes: int | None = None
    """Compositions side by side; three for each core by default."""

    def has(self, injection: Injection) -> bool:
        if self.faults and not any(_names(word.lower(), injection.fault.lower()) for word in self.faults):
            return False
        if injection.point is None:
            return self.point is None
        if self.process not in (None, injection.point.process):
            return False
        return self.point is None or self.point in str(injection.point)


@dataclass(frozen=True)
class Outcome:
    """What became of the messages of one fault. Times are seconds since the run began."""

    injection: Injection
    lane: int
    begun: float
    ended: float
    met: bool
    stall: float
    pushed: int
    lost: int
    doubled: int
    reordered: int
    broken: int
    """Messages whose fate breaks a promise of the services on their way."""
    whereabouts: tuple[str, ...] = ()
    """Lists in which lost messages lie."""


@dataclass
class Report:
    """``points``: all that the processes of the composition have; ``books``: what its ledgers do not agree on."""

    seed: int
    points: list[Point]
    outcomes: list[Outcome]
    seconds: float
    books: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.books and not any(outcome.broken for outcome in self.outcomes)


@dataclass
class _Happened:
    injection: Injection
    lane: int
    begun: float
    ended: float
    met: bool
    stall: float
    account: Account


class Run:
    """``tell`` hears of how many faults there are and of each that is over."""

    def __init__(self, topology: Topology, chosen: Chosen, tell: Callable[[int, int, str], None]) -> None:
        self._topology, self._chosen, self._tell = topology, chosen, tell
        self._check()
        self._routes = Routes.of(topology)
        self._begun = time.monotonic()
        self._again = max((sink.again for sinks in self._routes.sinks.values() for sink in sinks), default=0)

    def _check(self) -> None:
        known = {
            "fault": [*(kind.value for kind in Kind), *FAULTS],
            "service": [part.name for part in self._topology.parts],
        }
        for word in self._chosen.faults:
            for single in word.split(" + "):
                if not any(single.lower() in name.lower() for name in known["fault"]):
                    raise PenstockError(f"no fault is called {single!r}: expected part of {', '.join(known['fault'])}")
        if self._chosen.process not in (None, *known["service"]):
            raise PenstockError(
                f"no process is called {self._chosen.process!r}: expected one of {', '.join(known['service'])}"
            )

    async def report(self) -> Report:
        """Raises ``PenstockError`` where messages do not come out even with nothing broken, or nothing is chosen."""
        async with AsyncExitStack() as exits:
            times: Times = {}
            first = await exits.enter_async_context(Stage(self._topology, self._routes, times))
            points = await Recording(first).points()
            self._calibrate(first, times)
            injections = [each for each in self._planned(points) if self._chosen.has(each)]
            if not injections:
                raise PenstockError("no fault is left to inject: --fault, --service or --point name none that there is")
            lanes = min(self._chosen.lanes or 3 * (os.cpu_count() or 1), len(injections))
            more = [Stage(self._topology, self._routes, times) for _ in range(lanes - 1)]
            entered = await asyncio.gather(*map(exits.enter_async_context, more), return_exceptions=True)
            stages = [first, *map(_sound, entered)]
            for stage in stages:
                stage.order = first.order
            happened = await self._work_off(stages, injections)
            outcomes = [await self._judged(stages, each, times) for each in happened]
            books = await self._books(stages)
        return Report(self._chosen.seed, points, outcomes, time.monotonic() - self._begun, books)

    def _calibrate(self, stage: Stage, times: Times) -> None:
        account = stage.accounts[CALM]
        for source, sinks in self._routes.sinks.items():
            pushed = account.pushed[source]
            for sink in sinks:
                came = [number for number in account.arrived[sink.place] if number in set(pushed)]
                counts = Counter(came)
                if not all(counts[number] for number in pushed):
                    raise PenstockError(
                        f"{source.key} to {sink.place.key}: with nothing broken, {len(pushed) - len(counts)} of "
                        f"{len(pushed)} messages did not come out; chaos: message must be one that the composition's "
                        f"programs take, and chaos: out lists that get every message.\n{self._last_words(stage)}"
                    )
                times[source, sink.place] = min(counts.values()) if sink.promise == "once" else 1
                downs = sum(one > other for one, other in pairwise(came))
                if 2 * downs > len(came):
                    stage.order = -1

    def _last_words(self, stage: Stage) -> str:
        return "\n".join(f"{name} said last: {each.said(300).strip()}" for name, each in stage.performers.items())

    def _planned(self, points: Sequence[Point]) -> Iterable[Injection]:
        number = 0
        for point in points:
            for kind in Kind:
                number += 1
                yield Injection(number, kind.value, point, kind)
        pair = random.Random(self._chosen.seed)
        alone = [fault for fault in FAULTS if fault != WRONG_TYPE or fed(self._topology)]
        for turn in range(self._chosen.rounds):
            two = " + ".join(pair.sample(PAIRED, 2))
            for fault in (*alone, two):
                number += 1
                yield Injection(number, fault, None, None, f"{self._chosen.seed}:{fault}:{turn}", self._chosen.process)

    async def _work_off(self, stages: Sequence[Stage], injections: Sequence[Injection]) -> list[_Happened]:
        left, happened = sorted(injections, key=lambda each: each.slow), list[_Happened]()

        async def lane(place: int, stage: Stage) -> None:
            while left:
                injection, begun = left.pop(), time.monotonic()  # slow ones first
                met = await injection.happen(stage)
                stall = await stage.settled(injection.number, injection.patience + self._again)
                account = stage.accounts[injection.number]
                ended = time.monotonic() - self._begun
                happened.append(_Happened(injection, place, begun - self._begun, ended, met, stall, account))
                self._tell(len(happened), len(injections), str(injection))
            await stage.settled_all(LAST + self._again)

        self._tell(0, len(injections), "")
        async with asyncio.TaskGroup() as lanes:
            for place, stage in enumerate(stages):
                lanes.create_task(lane(place, stage))
        return sorted(happened, key=lambda each: each.injection.number)

    async def _judged(
        self, stages: Sequence[Stage], each: _Happened, times: Mapping[tuple[Place, Place], int]
    ) -> Outcome:
        account, routes = each.account, self._routes
        lost = account.lost(routes, times)
        where: tuple[str, ...] = ()
        if lost:
            ids = {(each.injection.number, number) for _, number in lost}
            where = tuple(sorted(set((await stages[each.lane].whereabouts(ids)).values())))
        broken = account.doubled(routes, times, broken=True) + account.reordered(routes, broken=True)
        return Outcome(
            each.injection,
            each.lane,
            each.begun,
            each.ended,
            each.met,
            each.stall,
            sum(map(len, account.pushed.values())),
            len(lost),
            account.doubled(routes, times),
            account.reordered(routes),
            len(lost) + broken,
            where,
        )

    async def _books(self, stages: Sequence[Stage]) -> list[str]:
        """What the services' own ledgers do not agree on in the end."""
        problems = []
        for place, stage in enumerate(stages):
            for namespace, server in sorted(self._namespaces(stage)):
                redis, keys = stage.client(Place("", server)), Keys(namespace)
                books = await ledger(redis, keys) or await audit(redis, keys)
                problems += [f"stage {place + 1}, {namespace}: {each}" for each in books.problems] if books else []
        return problems

    def _namespaces(self, stage: Stage) -> set[tuple[str, str]]:
        """With the server of the lists of each."""
        parts = [part for part in self._topology.parts if part.namespace and part.name in stage.performers]
        return {(str(part.namespace), server_of(part.settings.redis)) for part in parts}


def _sound(stage: Stage | BaseException) -> Stage:
    """Raised only when none is on its way any more, so that all that were entered are left again."""
    if isinstance(stage, BaseException):
        raise stage
    return stage


def _names(word: str, fault: str) -> bool:
    """A whole name means just that fault."""
    return word == fault if word in NAMES else word in fault
