"""Sizes of the messages that were read from a list; they decide how many to read at once next."""

from typing import Final

SMALL: Final = 8_192
"""Bytes up to which a message is small; also in ``lua/parts/reading.lua``."""
MIN_SMALL_MESSAGES: Final = 1_000
"""Small messages in a row after which several are read at once."""
READ_AT_ONCE: Final = 128
"""Maximum number of messages that are read at once then: one call costs as much as moving some ten small messages."""
EVIDENCE: Final = 64
"""Small messages in a row for each that is read at once."""
DECAY: Final = 0.99
"""Factor for the largest size after each reading, so that one message does not slow the list for good."""


class Sizes:
    """What the caller of a script ``WITH reading`` remembers from one call to the next."""

    def __init__(self) -> None:
        self._small = 0
        self.largest = 0
        """Bytes of the largest small message seen lately."""

    @property
    def unseen(self) -> int:
        """Return how many messages may be read at once before their sizes are known."""
        return min(self._small // EVIDENCE, READ_AT_ONCE) if self._small >= MIN_SMALL_MESSAGES else 1

    @property
    def named(self) -> dict[str, int]:
        """Return the arguments of ``reading.lua``."""
        return {"unseen": self.unseen, "largest": self.largest}

    def note(self, messages: int, largest: int) -> None:
        """Note that this many messages were read, of at most ``largest`` bytes each."""
        if largest > SMALL:
            self._small = self.largest = 0
        else:
            self._small += messages
            self.largest = max(int(self.largest * DECAY), largest)

    def note_all(self, messages: list[bytes]) -> int:
        """Note all of ``messages``; return the bytes of the largest."""
        largest = max(map(len, messages), default=0)
        self.note(len(messages), largest)
        return largest


def fitting(messages: list[bytes], size: int) -> int:
    """Return how many of ``messages`` it takes to reach ``size`` bytes; all of them if they do not."""
    total = 0
    for count, message in enumerate(messages, start=1):
        total += len(message)
        if total >= size:
            return count
    return len(messages)
