"""How many jobs are read."""

from typing import Any, Final

from penstock.core.runner import Runner

SHORT_SECONDS: Final = 0.02
"""While attempts take less than this, jobs are read ahead."""
AVERAGED: Final = 50
"""About how many attempts count for how long one takes."""


class Durations:
    """About how long attempts take."""

    def __init__(self) -> None:
        self.mean = SHORT_SECONDS
        """In seconds."""

    def note(self, seconds: float) -> None:
        """Note how long one took."""
        self.mean += (seconds - self.mean) / AVERAGED

    def forget(self) -> None:
        """Read nothing ahead until short ones are known."""
        self.mean = SHORT_SECONDS


class Prefetch:
    """As many as may begin; if ``is_ahead``, as many again as run at a time, while they are short."""

    def __init__(self, runner: Runner[Any], durations: Durations, *, is_ahead: bool) -> None:
        self._runner, self._durations, self._is_ahead = runner, durations, is_ahead

    def begin(self) -> None:
        """Note nothing: how long jobs take is noted as they end."""

    def size(self) -> int:
        """Return how many more jobs may be read."""
        if self._runner.holds_back or self._runner.is_paused:
            return 0
        concurrency = self._runner.concurrency
        more = concurrency if self._is_ahead and self._durations.mean < SHORT_SECONDS else 0
        return max(0, concurrency + more - self._runner.busy)
