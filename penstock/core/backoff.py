"""Delays between the attempts to process a message."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Backoff:
    """Fixed delays ``steps`` (s), of which the last repeats, or delays that double from ``base`` (s) up to ``cap`` (s).

    Doubling delays have jitter, from half to all of the delay, so that messages that failed together spread out.
    """

    steps: Sequence[float] = ()
    base: float = 0.0
    cap: float = 0.0

    @property
    def as_json(self) -> str:
        """The form that ``Backoff.parse`` takes: ``[1, 5]`` or ``{"base": 1, "cap": 5}``."""
        return json.dumps(self.steps or {"base": self.base, "cap": self.cap})

    @classmethod
    def parse(cls, written: str | bytes) -> Self:
        """Parse one of the two forms. Raise ``ValueError``, ``KeyError`` or ``TypeError`` for anything else."""
        found = json.loads(written)
        return cls(found, 0, 0) if isinstance(found, list) else cls((), float(found["base"]), float(found["cap"]))

    def longest_delay(self, attempts: int) -> float:
        """Return the longest delay (s) between any two of ``attempts`` attempts."""
        return max((self._full_delay(failed) for failed in range(1, attempts)), default=0.0)

    def delay_after(self, failed: int) -> float:
        """Return the delay (s) after ``failed`` attempts (1 or more) have failed."""
        return random.uniform(*self.delay_range(failed))

    def delay_range(self, failed: int) -> tuple[float, float]:
        """Return the shortest and the longest delay (s) after ``failed`` attempts (1 or more) have failed."""
        full = self._full_delay(failed)
        return (full, full) if self.steps else (full / 2, full)

    def _full_delay(self, failed: int) -> float:
        if self.steps:
            return float(self.steps[min(failed, len(self.steps)) - 1])
        return float(min(self.cap, self.base * 2.0 ** min(failed - 1, 60)))
