"""What a consumer has handled and not settled, and the results that go with it."""

import time
from collections.abc import Sequence
from math import inf
from typing import Final

SETTLE_SECONDS: Final = 0.05
"""Seconds after which handled messages are settled, though more are at hand. A batch is meant to last as long."""
MAX_RESULTS: Final = 1_000
"""Results that are kept until they are written, beyond those of one message; the stack of Lua ends at some 8,000."""
MAX_RESULT_BYTES: Final = 1 << 20
"""Bytes of results after which they are written."""
MAX_MESSAGE_BYTES: Final = 16 << 20
"""Bytes of the results of one message, if it has several: the server does nothing else while it takes them."""
FAILED: Final = -1
Results = Sequence[tuple[bytes, bytes]]
"""What the handling of one message pushes: list and message."""


class Settlement:
    """The next settlement of one consumer: ``number`` counts them, from 1 on.

    A message counts as handled, with its results or as failed, from one step of Python to the next. So an interrupt (an
    exception raised by a signal handler) finds it handled or not, and never handled without its results.
    """

    def __init__(self, number: int = 1, failures: int = 0) -> None:
        self.number, self.failures = number, failures
        """``failures``: settlements in a row of messages that all failed."""
        self._outcomes = list[int | None]()
        """Of each message handled ``FAILED``, or how many results there are with its own, or None if it has none."""
        self._results = list[tuple[bytes, bytes]]()
        """The results of all; those behind the last outcome are of a message that does not count as handled."""
        self._size = 0
        """Their bytes."""
        self._has_failed = False
        self._settled_at = -inf

    @property
    def handled(self) -> int:
        """Return how many messages were handled."""
        return len(self._outcomes)

    @property
    def failed(self) -> list[int]:
        """Return the places of those that failed, from 1 on."""
        if not self._has_failed:
            return []
        return [place for place, outcome in enumerate(self._outcomes, start=1) if outcome == FAILED]

    @property
    def results(self) -> dict[bytes, list[bytes]]:
        """Return what the others push, by list."""
        found = dict[bytes, list[bytes]]()
        for name, message in self._results[: self._count()]:
            found.setdefault(name, []).append(message)
        return found

    def _count(self) -> int:
        """Return how many results there are of messages that were handled."""
        for outcome in reversed(self._outcomes):
            if outcome is not None and outcome != FAILED:
                return outcome
        return 0

    @property
    def is_due(self) -> bool:
        """Return whether to settle before the next message."""
        return time.monotonic() - self._settled_at >= SETTLE_SECONDS

    def note_end(self, results: Results | None) -> None:
        """Note that a message was handled, and what it pushes; None if it failed."""
        if results:
            if len(self._results) > (count := self._count()):
                del self._results[count:]
            self._results += results
            self._outcomes.append(len(self._results))
            self._size += sum(len(message) for _, message in results)
            if len(self._results) >= MAX_RESULTS or self._size >= MAX_RESULT_BYTES:
                self._settled_at = -inf
        elif results is None:
            self._has_failed = True
            self._outcomes.append(FAILED)
            self._settled_at = -inf
        else:
            self._outcomes.append(None)

    def keep_last_failed(self) -> None:
        """Leave the messages that failed last unhandled: in its place each keeps the order."""
        while self._outcomes and self._outcomes[-1] == FAILED:
            self._outcomes.pop()

    def note_waited(self) -> None:
        """Note that a message has come after a wait: there was nothing to settle."""
        self._settled_at = time.monotonic()

    def next(self) -> "Settlement":
        """Return the one after this, which was settled now."""
        following = Settlement(self.number, self.failures)
        if self._outcomes:
            following.number += 1
            following.failures = self.failures + 1 if len(self.failed) == self.handled else 0
        following._settled_at = time.monotonic()
        return following
