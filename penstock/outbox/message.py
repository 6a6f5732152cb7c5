"""What handlers get."""

from penstock.base.payload import Received
from penstock.outbox.ids import as_text, sent_at
from penstock.outbox.store import SEPARATOR, Waiting


class Message(Received):
    """A message: ``bytes(message)``, ``str(message)`` or ``message.json()`` is its data."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: Waiting) -> None:
        self.body = waiting[4]
        self._waiting = waiting

    @property
    def id(self) -> str:
        return as_text(self._waiting.id)

    @property
    def keys(self) -> tuple[str, ...]:
        """Those of its keys that we have subscribed to."""
        return tuple(self._waiting.keys.split(SEPARATOR))

    @property
    def sender(self) -> str:
        """The address of who published it; it is as true as its connection was safe."""
        return self._waiting.sender

    @property
    def attempts(self) -> int:
        """1 for the first. Attempts that ended with the process count, unless other messages may be to blame."""
        return self._waiting.attempts + 1

    @property
    def sent(self) -> float:
        """When it was published (s since the epoch), by the publisher's clock, which may be wrong."""
        return sent_at(self._waiting.id)

    def __repr__(self) -> str:
        return f"<Message {self.id} {', '.join(self.keys)}>"
