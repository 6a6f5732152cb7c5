"""What is under way on a connection and not acknowledged, as the sender counts it and as the receiver does."""

from collections import deque
from collections.abc import Mapping, Sequence

from penstock.outbox.frames import Acknowledged, MessageFrame, Violation
from penstock.outbox.hello import Limits


class _Window:
    """Messages in the order of their seqs, with what they weigh."""

    def __init__(self) -> None:
        self.bytes = 0
        self._items = deque[tuple[int, int]]()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, seq: int, weight: int) -> None:
        self._items.append((seq, weight))
        self.bytes += weight

    def pop(self, upto: int) -> list[int]:
        """Remove all up to ``upto`` and return their seqs."""
        found = []
        while self._items and self._items[0][0] <= upto:
            seq, weight = self._items.popleft()
            self.bytes -= weight
            found.append(seq)
        return found


class Outgoing:
    """The messages that we have sent; ``refused`` are those whose refusal nobody has read yet."""

    def __init__(self) -> None:
        self.window = _Window()
        self.refused: dict[int, str] = {}
        self.seq = 0
        """Of the last one that was added."""
        self.written = 0
        """Seq of the last one that was written."""
        self.acknowledged = 0
        self._told = 0

    def has_room(self, weight: int, limits: Limits) -> bool:
        """Return whether a message of ``weight`` bytes may be sent now."""
        if len(self.refused) >= limits.window_messages:
            return False
        return not self.window or (
            len(self.window) < limits.window_messages and self.window.bytes + weight <= limits.window_bytes
        )

    def add(self, message: MessageFrame, weight: int) -> None:
        self.seq = message.seq
        self.window.add(message.seq, weight)

    def settle(self, found: Acknowledged) -> None:
        """Take an acknowledgement. Raise ``Violation`` if it is about what was not sent, or not about anything new."""
        if not self.acknowledged < found.upto <= self.written:
            raise Violation("it acknowledges what was not sent, or once more")
        settled = set(self.window.pop(found.upto))
        if not settled.issuperset(found.refused):
            raise Violation("it refuses what was not sent, or once more")
        self.acknowledged = found.upto
        self.refused |= found.refused

    def progress(self) -> Acknowledged | None:
        """Return what was acknowledged since the last call; None if nothing was."""
        if self.acknowledged <= self._told:
            return None
        self._told, refused, self.refused = self.acknowledged, self.refused, {}
        return Acknowledged(self._told, refused)


class Incoming:
    """The messages that have come to us."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._window = limits, _Window()
        self._seq, self._settled = 0, 0
        self._due = Acknowledged(0, {})

    def take(self, messages: Sequence[MessageFrame], weights: Sequence[int]) -> None:
        """Count ``messages``, which weigh ``weights`` bytes.

        Raise ``Violation`` if their seqs do not increase, or they are too large or too many.
        """
        for each, weight in zip(messages, weights, strict=True):
            if each.seq <= self._seq:
                raise Violation("the seq of a message does not increase")
            if weight > self._limits.max_message_bytes:
                most = self._limits.max_message_bytes
                raise Violation(f"a message of {weight:,} bytes is too large: the limit is {most:,}")
            self._seq = each.seq
            self._window.add(each.seq, weight)
        too_large = self._window.bytes > self._limits.window_bytes and len(self._window) > 1
        if too_large or len(self._window) > self._limits.window_messages:
            raise Violation("it sends more than the window allows")

    def settle(self, upto: int, refused: Mapping[int, str]) -> None:
        """Note what is to be acknowledged. Raise ``ValueError`` if it did not come, or was acknowledged."""
        last = max(self._settled, self._due.upto)
        if not last < upto <= self._seq or any(not last < seq <= upto for seq in refused):
            raise ValueError(f"seq {upto} or a refusal is not between {last + 1} and {self._seq}")
        self._due = Acknowledged(upto, {**self._due.refused, **refused})

    def due(self) -> Acknowledged | None:
        """Return what is to be acknowledged, which opens the window as far; None if nothing is."""
        if self._due.upto <= self._settled:
            return None
        found, self._settled = self._due, self._due.upto
        self._window.pop(self._settled)
        self._due = Acknowledged(self._settled, {})
        return found
