"""How many messages to take at once."""

import time
from typing import Protocol


class Prefetch(Protocol):
    """How many items to take at once."""

    def begin(self) -> None:
        """Note that the handling of what was taken begins."""

    def size(self) -> int:
        """Return how many to take now; 0 for none."""


class Pace:
    """As many as were lately handled in ``seconds``, at most twice as many as before, and never more than ``most``."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds, self._most = seconds, most
        self._size, self._begun = 1, 0.0

    def begin(self) -> None:
        """Note that the handling of what was taken begins."""
        self._begun = time.monotonic()

    def size(self) -> int:
        """Return how many messages to take now that those before are handled."""
        spent = time.monotonic() - self._begun
        factor = 2.0 if spent < self._seconds else self._seconds / spent
        self._size = min(max(round(self._size * factor), 1), self._most)
        return self._size
