"""A whole chaos run: record points, plan faults, and inject them on several lanes side by side."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from penstock.accounting.audit import audit
from penstock.accounting.tracked import audit_tracked
from penstock.base.encoding import counted
from penstock.base.errors import PenstockError
from penstock.base.keys import Keys
from penstock.base.shape import Place
from penstock.composition.model import Composition
from penstock.testing.chaos.faults import Injection
from penstock.testing.chaos.lane import BASELINE_ACCOUNT, Lane, Times
from penstock.testing.chaos.messages import Account, Routes
from penstock.testing.chaos.plan import Chosen, expected, planned, taking_part
from penstock.testing.chaos.points import Point
from penstock.testing.chaos.recording import Recording

FINAL_WAIT_SECONDS: Final = 10.0
"""Seconds without progress after which messages still missing at the end are given up."""


@dataclass(frozen=True)
class FaultResult:
    """The result of one fault, with counts of its messages. Times are seconds since the run began."""

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
    """Messages lost, doubled or reordered against a promise of the parts on their way."""
    whereabouts: tuple[str, ...] = ()
    """Lists that hold lost messages."""


@dataclass
class Report:
    """The results of a run; ``points`` are all that were recorded, ``books`` the problems that audits found."""

    seed: int
    points: list[Point]
    results: list[FaultResult]
    seconds: float
    books: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.books and not any(result.broken for result in self.results)


@dataclass
class _Injected:
    injection: Injection
    lane: int
    begun: float
    ended: float
    met: bool
    stall: float
    account: Account


class Run:
    """Call ``progress`` with faults done, faults in all, and the last one; ``log`` with lines for people."""

    def __init__(
        self,
        composition: Composition,
        chosen: Chosen,
        progress: Callable[[int, int, str], None],
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._composition, left_out = taking_part(composition)
        self._chosen, self._progress, self._log = chosen, progress, log
        chosen.check(self._composition)
        self._routes = Routes.of(self._composition)
        for line in left_out:
            log(line)
        self._begun = time.monotonic()
        self._redelivery = max((sink.again for sinks in self._routes.sinks.values() for sink in sinks), default=0)

    async def report(self) -> Report:
        """Run all. Raise ``PenstockError`` if messages do not come out without a fault, or if no fault is chosen."""
        async with AsyncExitStack() as exits:
            times: Times = {}
            first = await exits.enter_async_context(Lane(self._composition, self._routes, times))
            points = await Recording(first).points()
            self._calibrate(first, times)
            injections = planned(self._composition, points, self._chosen)
            if not injections:
                raise PenstockError("no fault matches --fault, --service and --point")
            count = self._chosen.lane_count(injections)
            self._log(self._forecast(points, injections, count))
            more = [Lane(self._composition, self._routes, times) for _ in range(count - 1)]
            entered = await asyncio.gather(*map(exits.enter_async_context, more), return_exceptions=True)
            lanes = [first, *map(_or_raise, entered)]
            for lane in lanes:
                lane.order = first.order
            happened = await self._inject_all(lanes, injections)
            results = [await self._judge(lanes, each, times) for each in happened]
            books = await self._books(lanes)
        return Report(self._chosen.seed, points, results, time.monotonic() - self._begun, books)

    def _forecast(self, points: Sequence[Point], injections: Sequence[Injection], lanes: int) -> str:
        seconds = expected(self._composition, injections, lanes) + self._redelivery
        length = f"{seconds / 60:.1f} min" if seconds > 90 else f"{max(seconds, 5):.0f} s"
        what = f"{counted(len(injections), 'fault')}, {counted(len(points), 'point')}"
        return f"{what}, {lanes} at a time: about {length}"

    def _calibrate(self, lane: Lane, times: Times) -> None:
        account = lane.accounts[BASELINE_ACCOUNT]
        for source, sinks in self._routes.sinks.items():
            pushed = account.pushed[source]
            for sink in sinks:
                came = [number for number in account.arrived[sink.place] if number in set(pushed)]
                counts = Counter(came)
                if not all(counts[number] for number in pushed):
                    raise PenstockError(
                        f"{source.key} to {sink.place.key}: with nothing broken, {len(pushed) - len(counts)} of "
                        f"{len(pushed)} messages did not come out; chaos: message must be one that the composition's "
                        f"programs take, and chaos: out lists that get every message.\n{self._log_tails(lane)}"
                    )
                times[source, sink.place] = min(counts.values()) if sink.promise == "once" else 1
                downs = sum(one > other for one, other in pairwise(came))
                if 2 * downs > len(came):
                    lane.order = -1

    def _log_tails(self, lane: Lane) -> str:
        return "\n".join(f"{name} said last: {each.log_tail(300).strip()}" for name, each in lane.processes.items())

    async def _inject_all(self, lanes: Sequence[Lane], injections: Sequence[Injection]) -> list[_Injected]:
        left, happened = sorted(injections, key=lambda each: each.slow), list[_Injected]()

        async def work(index: int, lane: Lane) -> None:
            while left:
                injection, begun = left.pop(), time.monotonic()  # slow ones first
                met = await injection.inject(lane)
                stall = await lane.wait_until_settled(injection.number, injection.stall_limit + self._redelivery)
                account = lane.accounts[injection.number]
                ended = time.monotonic() - self._begun
                happened.append(_Injected(injection, index, begun - self._begun, ended, met, stall, account))
                self._progress(len(happened), len(injections), str(injection))
            await lane.wait_until_all_settled(FINAL_WAIT_SECONDS + self._redelivery)

        self._progress(0, len(injections), "")
        async with asyncio.TaskGroup() as group:
            for index, lane in enumerate(lanes):
                group.create_task(work(index, lane))
        return sorted(happened, key=lambda each: each.injection.number)

    async def _judge(
        self, lanes: Sequence[Lane], each: _Injected, times: Mapping[tuple[Place, Place], int]
    ) -> FaultResult:
        account, routes = each.account, self._routes
        lost = account.lost(routes, times)
        where: tuple[str, ...] = ()
        if lost:
            ids = {(each.injection.number, number) for _, number in lost}
            where = tuple(sorted(set((await lanes[each.lane].find_lists(ids)).values())))
        broken = account.doubled(routes, times, broken=True) + account.reordered(routes, broken=True)
        return FaultResult(
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

    async def _books(self, lanes: Sequence[Lane]) -> list[str]:
        """Return the problems that audits of all namespaces find in the end."""
        problems = []
        for index, lane in enumerate(lanes):
            for namespace, server in sorted(self._namespaces(lane)):
                redis, keys = lane.client(Place("", server)), Keys(namespace)
                books = await audit_tracked(redis, keys) or await audit(redis, keys)
                problems += [f"stage {index + 1}, {namespace}: {each}" for each in books.problems] if books else []
        return problems

    def _namespaces(self, lane: Lane) -> set[tuple[str, str]]:
        """Return each namespace with the server of its lists."""
        parts = [part for part in self._composition.parts if part.namespace and part.name in lane.processes]
        return {(str(part.namespace), part.server) for part in parts}


def _or_raise(lane: Lane | BaseException) -> Lane:
    """Return ``lane`` or raise the error of its start, which waits until all others have started and can be closed."""
    if isinstance(lane, BaseException):
        raise lane
    return lane
