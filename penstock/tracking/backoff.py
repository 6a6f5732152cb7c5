"""How long to wait before a message is tried again."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Backoff:
    """Either ``steps`` (s), the last again and again, or from ``base`` (s) on twice as long each time, up to ``cap``.

    The latter has jitter, from half of it to all, so that what failed together does not come back together.
    """

    steps: Sequence[float]
    base: float
    cap: float

    @property
    def written(self) -> str:
        """As ``Backoff.read`` takes it: ``[1, 5]`` or ``{"base": 1, "cap": 5}``."""
        return json.dumps(self.steps or {"base": self.base, "cap": self.cap})

    @classmethod
    def read(cls, written: str | bytes) -> Self:
        """Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is neither of the two."""
        found = json.loads(written)
        return cls(found, 0, 0) if isinstance(found, list) else cls((), float(found["base"]), float(found["cap"]))

    def longest(self, attempts: int) -> float:
        """The longest wait (s) that so many attempts can bring."""
        return max((self._whole(failed) for failed in range(1, attempts)), default=0.0)

    def after(self, failed: int) -> float:
        """The wait (s) once so many attempts have failed, from 1."""
        return random.uniform(*self.span(failed))

    def span(self, failed: int) -> tuple[float, float]:
        """The shortest and the longest wait (s) once so many attempts have failed, from 1."""
        whole = self._whole(failed)
        return (whole, whole) if self.steps else (whole / 2, whole)

    def _whole(self, failed: int) -> float:
        if self.steps:
            return float(self.steps[min(failed, len(self.steps)) - 1])
        return float(min(self.cap, self.base * 2.0 ** min(failed - 1, 60)))
