"""What a consumer has handled and not settled, and the results that go with it."""

import json
from collections.abc import Sequence
from typing import Any, Final

MAX_RESULTS: Final = 1_000
"""Results that are kept until they are written, beyond those of one message; the stack of Lua ends at some 8,000."""
MAX_RESULT_BYTES: Final = 1 << 20
"""Bytes of results after which they are written."""
MAX_MESSAGE_BYTES: Final = 16 << 20
"""Bytes of the results of one message, if it has several: the server does nothing else while it takes them."""
CANCELLED: Final = 0
DIED: Final = 1
Ending = int | str
"""Why a message was not handled: words if it failed, ``CANCELLED``, or ``DIED`` if its consumers have."""
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
        self._outcomes = list[int | tuple[Ending] | None]()
        """Of each message handled how many results there are with its own, None if it has none, or why it failed."""
        self._had_failed = list[int]()
        """Places of those that had failed before."""
        self.kept = 0
        """How many of the last ones are not to go back to the list, since all that was taken with them does."""
        self._results = list[tuple[bytes, bytes]]()
        """The results of all; those behind the last outcome are of a message that does not count as handled."""
        self._size = 0
        """Their bytes."""
        self._has_failed = False

    @property
    def handled(self) -> int:
        """Return how many messages were handled."""
        return len(self._outcomes)

    @property
    def failed(self) -> list[int]:
        """Return the places of those that failed, from 1 on."""
        if not self._has_failed:
            return []
        return [place for place, outcome in enumerate(self._outcomes, start=1) if isinstance(outcome, tuple)]

    @property
    def named(self) -> dict[str, Any]:
        """Return the arguments of ``consume.lua`` that say how each message has ended."""
        failed, handled = self.failed, self.handled
        ends = [outcome[0] for outcome in self._outcomes if isinstance(outcome, tuple)] if failed else []
        again = [place for place in self._had_failed if place <= handled and place not in failed]
        return {
            "settled": handled,
            "back": ",".join(map(str, failed)),
            "ends": json.dumps(ends),
            "kept": self.kept,
            "again": ",".join(map(str, again)),
        }

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
            if isinstance(outcome, int):
                return outcome
        return 0

    @property
    def is_full(self) -> bool:
        """Return whether there are so many results that they are to be written before there are more."""
        return len(self._results) >= MAX_RESULTS or self._size >= MAX_RESULT_BYTES

    def note_failed(self, ending: Ending) -> None:
        """Note that a message was not handled."""
        self._has_failed = True
        self._outcomes.append((ending,))

    def note_end(self, results: Results, failures: int = 0) -> None:
        """Note that a message was handled, what it pushes, and how often it had failed before."""
        if failures:
            self._had_failed.append(len(self._outcomes) + 1)
        if results:
            if len(self._results) > (count := self._count()):
                del self._results[count:]
            self._results += results
            self._outcomes.append(len(self._results))
            self._size += sum(len(message) for _, message in results)
        else:
            self._outcomes.append(None)

    def keep_last_failed(self) -> None:
        """Leave the messages that failed last where they are: in its place each keeps the order."""
        while self.kept < self.handled and isinstance(self._outcomes[-1 - self.kept], tuple):
            self.kept += 1

    def next(self) -> "Settlement":
        """Return the one after this."""
        following = Settlement(self.number, self.failures)
        if self._outcomes:
            following.number += 1
            following.failures = self.failures + 1 if len(self.failed) == self.handled else 0
        return following
