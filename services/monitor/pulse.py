"""Whether this process does its work, for those who ask from outside."""

import time
from typing import Final

LONGEST: Final = 60.0
"""Seconds without a look at what is due, after which the monitor counts as not ready."""


class Pulse:
    """Beats whenever a look at what is due came to its end."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def beat(self) -> None:
        self._last = time.monotonic()

    @property
    def is_felt(self) -> bool:
        return time.monotonic() - self._last < LONGEST


pulse: Final = Pulse()
