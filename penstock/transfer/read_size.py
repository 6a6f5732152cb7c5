"""Sizes of the messages that were read from a list; they decide how many to read at once next."""

from typing import Final

SMALL: Final = 8_192
"""Bytes up to which a message is small; also in ``lua/parts/reading.lua``."""
CALM: Final = 1_000
"""Small messages in a row after which several are read at once."""
TOGETHER: Final = 64
"""Messages that are read at once then: one call of a command costs as much as moving some ten small messages."""
FORGET: Final = 0.99
"""What is left of the largest size after each reading, so that one message does not slow the list for good."""


class Sizes:
    """What the caller of a script ``WITH reading`` remembers from one call to the next."""

    def __init__(self, together: int = TOGETHER) -> None:
        self._small, self._together = 0, together
        self.largest = 0
        """Bytes of the largest small message seen lately."""

    @property
    def unseen(self) -> int:
        """Messages that may be read at once before their sizes are known."""
        return self._together if self._small >= CALM else 1

    @property
    def named(self) -> dict[str, int]:
        """The arguments of ``reading.lua``."""
        return {"unseen": self.unseen, "largest": self.largest}

    def note(self, messages: int, largest: int) -> None:
        """Note that so many messages were read, of at most ``largest`` bytes."""
        if largest > SMALL:
            self._small = self.largest = 0
        else:
            self._small += messages
            self.largest = max(int(self.largest * FORGET), largest)

    def note_all(self, messages: list[bytes]) -> int:
        """Note all of ``messages``; return the bytes of the largest."""
        largest = max(map(len, messages), default=0)
        self.note(len(messages), largest)
        return largest


def fitting(messages: list[bytes], size: int) -> int:
    """Return how many of ``messages`` come before they have ``size`` bytes, and the one that makes them so large."""
    total = 0
    for count, message in enumerate(messages, start=1):
        total += len(message)
        if total >= size:
            return count
    return len(messages)
