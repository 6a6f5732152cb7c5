"""What a consumer has handled and not settled, and the results that go with it."""

import time
from math import inf
from typing import Final

from penstock.errors import WrongCall

SETTLE_SECONDS: Final = 0.05
"""Seconds after which handled messages are settled, though more are at hand. A batch is meant to last as long."""
MAX_RESULTS: Final = 1_000
"""Results that are kept until they are written, beyond those of one message; the stack of Lua ends at some 8,000."""
MAX_RESULT_BYTES: Final = 1 << 20
"""Bytes of results after which they are written."""


class Settlement:
    """The next settlement of one consumer."""

    def __init__(self) -> None:
        self.handled, self.failed = 0, list[int]()
        """Messages handled, and which of them failed, from 1 on."""
        self.results = dict[bytes, list[bytes]]()
        """What they push, by list."""
        self.failures = 0
        """Settlements in a row of messages that all failed."""
        self._of_message = list[tuple[bytes, list[bytes]]]()
        self._size, self._settled_at = 0, -inf

    @property
    def is_due(self) -> bool:
        """Return whether to settle before the next message."""
        return time.monotonic() - self._settled_at >= SETTLE_SECONDS

    def note_end(self, *, failed: bool) -> None:
        """Note that the handling of a message has ended."""
        self.handled += 1
        if failed:
            self.failed.append(self.handled)
            self._settled_at = -inf
        elif self._of_message:
            for name, messages in self._of_message:
                self.results.setdefault(name, []).extend(messages)
                self._size += sum(map(len, messages))
            if sum(map(len, self.results.values())) >= MAX_RESULTS or self._size >= MAX_RESULT_BYTES:
                self._settled_at = -inf
        self.drop_results()

    def add_results(self, name: bytes, results: list[bytes]) -> None:
        """Keep ``results`` of the message in hand until it is settled. Raise ``WrongCall`` if they are too many."""
        if sum(len(each) for _, each in self._of_message) + len(results) > MAX_RESULTS:
            raise WrongCall(f"more than {MAX_RESULTS:,} results of one message: push them with List.push_many")
        if results:
            self._of_message.append((name, results))

    def drop_results(self) -> None:
        """Forget the results of the message in hand."""
        if self._of_message:
            self._of_message = []

    def keep_last_failed(self) -> None:
        """Leave the messages that failed last unhandled: in its place each keeps the order."""
        while self.failed and self.failed[-1] == self.handled:
            self.handled -= 1
            self.failed.pop()

    def note_waited(self) -> None:
        """Note that a message has come after a wait: there was nothing to settle."""
        self._settled_at = time.monotonic()

    def note_settled(self, *, lost: bool) -> None:
        """Begin the next one; ``lost`` says that the lease had ended and others have the messages."""
        self._settled_at = time.monotonic()
        if self.handled and not lost:
            self.failures = self.failures + 1 if len(self.failed) == self.handled else 0
        self.handled, self.failed, self.results, self._size = 0, [], {}, 0
