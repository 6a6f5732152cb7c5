"""What is done to a composition: at every point one after the other, and by chance."""

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from penstock.connection import MAX_SILENCE
from penstock.testing.chaos.injection import Kind, inject_at
from penstock.testing.chaos.lane import BURST_SIZE, Lane
from penstock.testing.chaos.points import Point
from penstock.testing.chaos.random_faults import FAULTS, FaultContext

NO_FAULT: Final = "no fault"
BASELINE_MESSAGES: Final = 1_000
"""Messages of the round without a fault: a worker that loses or doubles one of some hundred is found there."""


@dataclass(frozen=True)
class Injection:
    """One fault: of ``kind`` at ``point``; or one that ``fault`` names, made by chance from ``seed``; or none."""

    number: int
    fault: str
    point: Point | None = None
    kind: Kind | None = None
    seed: str = ""
    process: str | None = None
    """The only process that a fault by chance may choose."""

    def __str__(self) -> str:
        if self.fault == NO_FAULT:
            return NO_FAULT
        return f"{self.fault}: {self.point}" if self.point else f"{self.fault} ({self.seed})"

    @property
    def slow(self) -> bool:
        """Whether it takes until a process takes a silent connection for lost."""
        return "swallowed" in self.fault

    async def inject(self, lane: Lane) -> bool:
        """Push messages before, while and after it happens. Returns whether it did."""
        if self.fault == NO_FAULT:
            await lane.push(self.number, BASELINE_MESSAGES)
            return True
        if self.point and self.kind:
            return await inject_at(lane, self.number, self.point, self.kind)
        await lane.push(self.number, 1 + BURST_SIZE)
        rng = random.Random(self.seed)
        faults = [FAULTS[name] for name in self.fault.split(" + ")]
        await asyncio.gather(*(fault(FaultContext(lane, self.number, rng, self.process)) for fault in faults))
        await lane.push(self.number, BURST_SIZE)
        return True

    @property
    def stall_limit(self) -> float:
        """Seconds without progress after which what is missing is not waited for."""
        return MAX_SILENCE + 15 if self.slow else 4.0
