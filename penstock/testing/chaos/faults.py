"""The faults of a run: one at an injection point, a random one, or none."""

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.core.connection import MAX_SILENCE
from penstock.testing.chaos.injection import Kind, PointFault
from penstock.testing.chaos.lane import Lane
from penstock.testing.chaos.points import Point
from penstock.testing.chaos.random_faults import FAULTS, FaultContext
from penstock.testing.chaos.subject import BURST_SIZE

NO_FAULT: Final = "no fault"
BASELINE_MESSAGES: Final = 1_000
"""Messages of the round without a fault: enough to find a worker that loses or doubles one in some hundred."""


@dataclass(frozen=True)
class Injection:
    """One fault: of ``kind`` at ``point``, or a random one called ``fault`` with ``seed``, or ``NO_FAULT``."""

    number: int
    fault: str
    point: Point | None = None
    kind: Kind | None = None
    seed: str = ""
    process: str | None = None
    """The only process that a random fault may choose; None for any."""

    def __str__(self) -> str:
        if self.fault == NO_FAULT:
            return NO_FAULT
        return f"{self.fault}: {self.point}" if self.point else f"{self.fault} ({self.seed})"

    @property
    def slow(self) -> bool:
        """Return True if it lasts until a process gives up a silent connection."""
        return "swallowed" in self.fault

    async def inject(self, lane: Lane) -> bool:
        """Push messages before, during and after the fault. Return False if its point was not met."""
        if self.fault == NO_FAULT:
            await lane.push(self.number, BASELINE_MESSAGES)
            return True
        if self.point and self.kind:
            subject = lane.subjects[self.point.process]
            met = await PointFault(subject, self.point, self.kind, partial(lane.push, self.number)).inject()
            await subject.process.start()
        else:
            met = True
            await lane.push(self.number, 1 + BURST_SIZE)
            rng = random.Random(self.seed)
            faults = [FAULTS[name] for name in self.fault.split(" + ")]
            await asyncio.gather(*(fault(FaultContext(lane, self.number, rng, self.process)) for fault in faults))
        await lane.push(self.number, BURST_SIZE)
        return met

    @property
    def stall_limit(self) -> float:
        """Seconds without progress after which missing messages are not waited for."""
        return MAX_SILENCE + 15 if self.slow else 4.0
