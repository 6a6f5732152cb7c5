"""The keys that the move of a queue uses."""

from typing import Any, Final

from penstock.bus.keys import available_channel, lease_key, moving_key, queue_key

HELD: Final = ("messages", "toack")
"""Lists of a queue that are held for a move."""


class Names:
    """The keys of one queue, by the names that the scripts give them."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self.available = available_channel(queue)
        """The channel on which consumers hear of new messages."""
        self.arrival = moving_key(queue, "arrival")
        self.strays = {kind: moving_key(queue, kind) for kind in ("strays", "batch")}
        self.held: dict[str, Any] = {f"held_{kind}": moving_key(queue, kind) for kind in HELD}

    def of(self, *kinds: str) -> dict[str, Any]:
        """Return the keys of the queue itself."""
        return {kind: lease_key(self._queue) if kind == "lease" else queue_key(self._queue, kind) for kind in kinds}
