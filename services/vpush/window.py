"""The bytes that may be in transit: as many as the link carries well within ``linkTimeout``."""

from typing import Final

INITIAL_BYTES: Final = 16_777_216
MIN_BYTES: Final = 16_384
GROWTH: Final = 1.2
SHRINKAGE: Final = 0.8
"""Factor for the window after an answer in good time, and after a late one."""
BATCHES: Final = 4
"""A batch may have this part of the window; an answer is late after this part of ``linkTimeout``."""


class SendWindow:
    """One a process: it outlives the link, so that a new link begins with what a slow one has taught."""

    def __init__(self) -> None:
        self.bytes = INITIAL_BYTES

    @property
    def batch_bytes(self) -> int:
        """Maximum number of bytes of a batch."""
        return self.bytes // BATCHES

    def arrived(self, seconds: float, link_timeout: float, max_bytes: int) -> None:
        """Adapt to a batch that took ``seconds``; the window has at most ``max_bytes``, and at least ``MIN_BYTES``."""
        factor = SHRINKAGE if seconds > link_timeout / BATCHES else GROWTH
        self.bytes = int(min(max(self.bytes * factor, MIN_BYTES), max(max_bytes, MIN_BYTES)))

    def timed_out(self) -> None:
        """Adapt to a link that answered nothing within ``linkTimeout``."""
        self.bytes = max(self.bytes // BATCHES, MIN_BYTES)
