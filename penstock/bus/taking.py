"""Take messages and forget them: one is gone from the queue once it is taken."""

from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.base.errors import Gone, Unconfirmed
from penstock.base.log import Log
from penstock.bus.message import Message
from penstock.bus.mode import Mode
from penstock.bus.scripts import POP, PUT_BACK
from penstock.core.raw_connection import pack
from penstock.core.wire import Reply

if TYPE_CHECKING:
    from penstock.bus.consumption import Consumption

MAX_PUT_BACK: Final = 1_000
"""Maximum number of messages that one script is sent to put back."""
LEASE_SECONDS: Final = 10
"""How long a consumer that has its queue alone lives without a sign of life."""
_log: Final = Log("penstock.bus")


class Intake(Protocol):
    """What brings messages to a consumption."""

    async def begin(self) -> None:
        """Prepare the queue."""

    def packed(self, most: int) -> bytes | None:
        """Return the call that takes at most ``most`` messages, if it may be sent ahead of ``take``."""

    async def take(self, most: int, sent: Reply | None) -> list[Any]:
        """Take messages; ``sent`` is the reply to the call of ``packed``, which has failed.

        Return how many remain, then lists of id, body, and so on.
        """

    async def give_back(self, left: list[Message]) -> None:
        """Give back ``left``, which was not handed out, and remove from it what has gone back."""

    def note_doubt(self) -> None:
        """Note that ids may have begun anew."""

    def note_restart(self) -> None:
        """Note that ids have begun anew."""


class Taking:
    """What brings the messages of a consumption that takes and forgets."""

    def __init__(self, consumption: "Consumption", mode: Mode) -> None:
        self.consumption, self.queue, self.mode = consumption, consumption.queue, mode
        self._last_packed: tuple[tuple[int, int], bytes] = (0, 0), b""

    async def begin(self) -> None:
        """Do nothing."""

    def packed(self, most: int) -> bytes:
        """Return the call that takes at most ``most`` messages."""
        shape = most, self.queue.seconds
        if self._last_packed[0] != shape:
            self._last_packed = shape, pack([POP.by_digest(**self.named(most))])
        return self._last_packed[1]

    async def take(self, most: int, sent: Reply | None) -> Any:
        """Take messages, unless the call was ``sent`` and the server has executed it."""
        while True:
            try:
                return await self.queue.finish(sent, POP, **self.named(most))
            except Gone:  # the bus finds out why when it keeps the queue alive
                return [0]
            except Unconfirmed as error:
                sent = None
                _log.warning("messages may be lost", queue=self.queue.name, most=most, reason=str(error))
                self.queue.emit("error", error)

    async def give_back(self, left: list[Message]) -> None:
        """Put ``left`` back as the oldest messages."""
        metadata, messages, *_ = self.queue.keys
        named = {"metadata": metadata, "messages": messages, "channel": self.queue.available}
        while left:
            taken = [word for each in left[-MAX_PUT_BACK:] for word in (str(each.id), each.body)]
            await self.queue.call_once(PUT_BACK, **named, taken=taken)
            del left[-MAX_PUT_BACK:]

    def note_doubt(self) -> None:
        """Do nothing: it takes whatever is there."""

    def note_restart(self) -> None:
        """Do nothing, as for ``note_doubt``."""

    def named(self, most: int) -> dict[str, Any]:
        """Return the keys and arguments of the script that takes messages."""
        metadata, messages, *_ = self.queue.keys
        named: dict[str, Any] = {"metadata": metadata, "messages": messages, "who": self.consumption.who}
        named |= {"seconds": LEASE_SECONDS, "ttl": self.queue.seconds}
        return named | {"most": most, "bytes": self.mode.prefetch_bytes, "last": 0}
