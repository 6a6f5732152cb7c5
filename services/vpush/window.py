"""How much may be on its way: as much as the link carries well within ``linkTimeout``."""

from typing import Final

START: Final = 16_777_216
LEAST: Final = 16_384
"""Bytes."""
FASTER: Final = 1.2
SLOWER: Final = 0.8
"""What an answer in good time, or a late one, makes of it."""
PART: Final = 4
"""An answer is late after this part of ``linkTimeout``; a batch is at most this part of what may be on its way."""


class Pace:
    """Outlives the link: what a slow one has taught is known when it is made anew."""

    def __init__(self) -> None:
        self.bytes = START

    @property
    def batch(self) -> int:
        """Bytes of a batch."""
        return self.bytes // PART

    def arrived(self, seconds: float, link_timeout: float, most: int) -> None:
        """A batch took so long; ``most`` bytes may be on their way in any case."""
        change = SLOWER if seconds > link_timeout / PART else FASTER
        self.bytes = int(min(max(self.bytes * change, LEAST), max(most, LEAST)))

    def timed_out(self) -> None:
        """Nothing was answered within ``linkTimeout``."""
        self.bytes = max(self.bytes // PART, LEAST)


pace: Final = Pace()
"""The process's own: it has one link."""
