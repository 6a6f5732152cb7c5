"""Moving or copying of a list to another server by one call of ``penstock shovel``: the common part."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, TimeoutError

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError, Refused
from penstock.core.link import Outage, again
from penstock.core.once import Dead, Shipment, Transfer, agree, largest_message, ledger_of
from penstock.core.raw_connection import RawConnection

BATCH: Final = 1000
BATCH_BYTES: Final = 256 * 1024
"""Maximum number of messages of a batch; no more are added once it has this many bytes."""

WINDOW: Final = 200
WINDOW_BYTES: Final = 16 << 20
"""Maximum number of batches, and bytes, in transit at a time."""

GIVE_UP_SECONDS: Final = 30
"""Seconds without progress after which a broken link is not tried again."""


class LocalError(Exception):
    """An error of the list's own server, as opposed to one of the other server."""

    def __init__(self, error: RedisError) -> None:
        super().__init__(str(error))
        self.error = error


class SourceLost(PenstockError):
    """The server of the list has lost messages that it had sent."""


@contextmanager
def local_errors() -> Iterator[None]:
    """Raise a ``RedisError`` of the block as ``LocalError``."""
    try:
        yield
    except RedisError as error:
        raise LocalError(error) from error


def first_of(error: BaseException) -> BaseException:
    """Return the cause in a group of errors: that of a server, if any is."""
    while isinstance(error, BaseExceptionGroup):
        error = min(error.exceptions, key=lambda each: not isinstance(first_of(each), RedisError | LocalError))
    return error


def _may_pass(error: BaseException) -> bool:
    """Return True if a new connection may solve it."""
    said = error.error if isinstance(error, LocalError) else error
    return isinstance(said, ConnectionError | TimeoutError) and not isinstance(said, AuthenticationError)


@dataclass
class Moved:
    """Messages that have arrived, and their bytes."""

    messages: int = 0
    bytes: int = 0


class _TooLarge(NamedTuple):
    """A message that the other server does not accept, and the largest size that it does (bytes)."""

    number: int
    bytes: int
    largest: int


class Shovel(ABC):
    """A ``Sender`` that also runs the transfer, to the list ``out`` of the server ``there``."""

    late: ClassVar[str]
    """The error if ``end`` takes too long, in words."""

    def __init__(self, here: "Redis", source: bytes, there: "Redis", out: str) -> None:
        self._here, self._source, self._there, self._out = here, source, there, out
        self._wire = RawConnection(there)
        self._ledger = ""
        self._largest = 0
        self._begun: int | None = None
        self._settled = 0
        self._sizes: list[int] = []
        """Bytes of each message that was taken and is not settled yet."""
        self._progress = asyncio.Event()
        """Set whenever messages are settled."""
        self.too_large: _TooLarge | None = None
        """The first message that cannot be sent: neither it nor later ones are."""
        self.moved = Moved()
        self.stopped = False
        """Set to take no more messages."""

    @abstractmethod
    async def waiting(self) -> int:
        """Return how many messages there are to move or copy."""

    async def unfinished(self) -> bool:
        """Return True if an earlier shovel of the same lists has not ended properly."""
        return False

    @property
    @abstractmethod
    def remains(self) -> str:
        """Return what the user can do if ``end`` fails, in words."""

    @property
    @abstractmethod
    def way_out(self) -> str:
        """Return what the user can do if one of the servers has lost data, in words."""

    @property
    def remarks(self) -> list[str]:
        """Return what the user should know about the result."""
        return []

    @abstractmethod
    async def take(self, first: int, most: int = BATCH) -> list[bytes]: ...

    @abstractmethod
    async def settle(self, last: int, dead: list[Dead]) -> None: ...

    @abstractmethod
    async def end(self) -> None:
        """Remove all keys but the lists. Raise if a server is away: ``remains`` says what is left then."""

    @abstractmethod
    async def _begin(self, past: int) -> tuple[str, int, int]:
        """Return the source id, a fencing token above ``past`` and all before, and the last settled sequence number.

        Raise ``Fenced`` if another shovel of the same lists has begun.
        """

    @property
    def settled(self) -> int:
        """Return the number of the last settled message."""
        return self._settled

    async def until_settled(self, last: int) -> None:
        """Wait until all messages up to number ``last`` are settled."""
        while self._settled < last:
            self._progress.clear()
            await self._progress.wait()

    async def wait(self, first: int) -> list[bytes] | None:
        return None

    async def run(self, limit: int | None, note: Callable[[int], object], broken: Callable[[str], object]) -> None:
        """Send at most ``limit`` messages over a link that may break; call ``note`` with how many have arrived."""
        outage, last = Outage(None), time.monotonic()

        def arrived(many: int) -> None:
            nonlocal last
            last = time.monotonic()
            outage.over()
            note(many)

        async def attempt() -> None:
            try:
                # A task of its own: one that has seen a group of tasks fail counts as cancelled, in Python 3.11.
                await asyncio.create_task(self._transfer(limit, arrived))
            finally:
                await self._wire.close()

        def lasts(error: Exception) -> bool:
            return not _may_pass(error) or self.stopped or time.monotonic() - last > GIVE_UP_SECONDS

        async def mend(error: Exception, _: bool) -> None:
            if outage.failures == 1:
                broken(str(error))

        await again(attempt, outage, lasts=lasts, mend=mend)

    async def _transfer(self, limit: int | None, note: Callable[[int], object]) -> None:
        self._largest = await largest_message(self._there)  # while the wire, the only connection there, is closed
        hop, settled = await agree(self, self._wire, self._out)
        begun = self._begun or 0

        def arrived(batch: Shipment) -> None:
            note(batch.last - begun)

        limited = _Limited(self, None if limit is None else begun + limit)
        transfer = Transfer(limited, hop, max_batches=WINDOW, max_bytes=lambda: WINDOW_BYTES, on_arrival=arrived)
        await transfer.run(settled)
        if self.too_large:
            raise self._refused(self.too_large)

    async def begin(self, past: int) -> tuple[str, int, int]:
        source, token, settled = await self._begin(past)
        if self._begun is None:
            self._begun = self._settled = settled
        self._note_settled(settled)
        self._ledger = ledger_of(self._out, source)
        return source, token, settled

    async def lost(self, last: int, settled: int) -> None:
        raise SourceLost(f"{last - settled:,} messages that arrived are not here any more: {self.way_out}")

    def fitting(self, first: int, messages: list[bytes]) -> list[bytes]:
        """Return ``messages``, of which the first has number ``first``, up to one that is too large."""
        if max(map(len, messages), default=0) > self._largest:
            sizes = enumerate(map(len, messages), start=first)
            self.too_large = next(_TooLarge(*each, self._largest) for each in sizes if each[1] > self._largest)
        return messages[: self.too_large.number - first] if self.too_large else messages

    def _refused(self, message: _TooLarge) -> Refused:
        place, source = self._place_of(message.number), decoded(self._source)
        return Refused(
            f"message {place:,} from the old end of {source} has {message.bytes:,} bytes, and the other server takes "
            f"{message.largest:,} at most: raise its proto-max-bulk-len, or take the message out (LINDEX {source} "
            f"{-place} shows it)"
        )

    def _place_of(self, number: int) -> int:
        """Return the place of a message in the list after the shovel has ended, counted from 1 at the old end."""
        return number - self._settled

    def _note_taken(self, first: int, messages: list[bytes]) -> list[bytes]:
        self._sizes += map(len, messages[self._settled + len(self._sizes) - first + 1 :])
        return messages

    def _note_settled(self, last: int) -> None:
        count = last - self._settled
        self.moved.messages += count
        self.moved.bytes += sum(self._sizes[:count])
        del self._sizes[:count]
        self._settled = last
        self._progress.set()


class _Limited:
    """A ``Source`` with a shovel's messages up to number ``last`` or one that is too large; ends if it is stopped.

    It also ends if it finds no more messages after all before have been settled: until then others may push some.
    """

    def __init__(self, shovel: Shovel, last: int | None) -> None:
        self._shovel, self._last = shovel, last
        self.settle = shovel.settle
        self._settled = shovel.settled
        """The last settled number when messages were last taken."""

    async def take(self, first: int) -> list[bytes]:
        self._settled = self._shovel.settled
        if not (most := self._most(first)):
            return []
        return self._shovel.fitting(first, await self._shovel.take(first, most))

    async def wait(self, first: int) -> list[bytes] | None:
        """Return [] once all before ``first`` are settled; None at the end."""
        if self._settled == first - 1 or not self._most(first):
            return None
        await self._shovel.until_settled(first - 1)
        return []

    def _most(self, first: int) -> int:
        """Return how many messages may be taken from number ``first`` on."""
        most = BATCH if self._last is None else min(BATCH, self._last - first + 1)
        if too_large := self._shovel.too_large:
            most = min(most, too_large.number - first)
        return 0 if self._shovel.stopped else max(most, 0)
