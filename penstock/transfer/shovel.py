"""A list moved or copied to another server by one call of ``penstock shovel``: what both have in common."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, TimeoutError

from penstock.encoding import decoded, encoded
from penstock.errors import PenstockError, Refused, TargetLost
from penstock.raw_connection import RawConnection
from penstock.tracking.backoff import Backoff
from penstock.transfer.engine import Batch, Transfer
from penstock.transfer.protocol import Dead, Target, catch_up, largest_message

BATCH: Final = 1000
BYTES: Final = 256 * 1024
"""No more messages are sent at a time once there are so many, or they have so many bytes."""

WINDOW: Final = 200
WINDOW_BYTES: Final = 16 << 20
"""Batches, and bytes, that are on their way at a time."""

PERSEVERANCE: Final = 30
"""Seconds that a broken link is tried again until nothing is expected of it."""

BACKOFF: Final = Backoff((), 0.1, 1.0)


class HereError(Exception):
    """What went wrong with the server of the list, told from trouble with the other one."""

    def __init__(self, error: RedisError) -> None:
        super().__init__(str(error))
        self.error = error


class SourceLost(PenstockError):
    """The server of the list has less than what it had sent."""


@contextmanager
def told_here() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise HereError(error) from error


def first_of(error: BaseException) -> BaseException:
    """Of tasks that ended together, what a server said comes before all else."""
    while isinstance(error, BaseExceptionGroup):
        error = min(error.exceptions, key=lambda each: not isinstance(first_of(each), RedisError | HereError))
    return error


def _passes(error: BaseException) -> bool:
    """Whether a new connection may mend it."""
    said = error.error if isinstance(error, HereError) else error
    return isinstance(said, ConnectionError | TimeoutError) and not isinstance(said, AuthenticationError)


@dataclass
class Moved:
    """What has arrived."""

    messages: int = 0
    bytes: int = 0


class _TooLarge(NamedTuple):
    """A message that the other server does not take, and how many bytes it would."""

    number: int
    bytes: int
    largest: int


class Shovel(ABC):
    """A ``Source`` of ``transport.py`` that carries itself to the list ``out`` of the server ``there``."""

    late: ClassVar[str]
    """What there is to say where ``end`` takes too long."""

    def __init__(self, here: "Redis", source: bytes, there: "Redis", out: str) -> None:
        self._here, self._source, self._there, self._out = here, source, there, out
        self._wire = RawConnection(there)
        self._ledger = b""
        self._largest = 0
        self._begun: int | None = None
        self._settled = 0
        self._sizes: list[int] = []
        """Of the messages that follow the settled ones, as far as they were taken."""
        self.too_large: _TooLarge | None = None
        """Nothing is carried from there on, whatever the link does meanwhile."""
        self.moved = Moved()
        self.stopped = False
        """Set to take nothing more."""

    @abstractmethod
    async def waiting(self) -> int:
        """How many messages there are to carry."""

    async def unfinished(self) -> bool:
        """Whether an earlier one has left something behind."""
        return False

    @property
    @abstractmethod
    def remains(self) -> str:
        """What there is to do where ``end`` failed."""

    @property
    @abstractmethod
    def way_out(self) -> str:
        """What there is to do where one of the servers has lost data."""

    @property
    def remarks(self) -> list[str]:
        """What the user should know of it."""
        return []

    @abstractmethod
    async def take(self, first: int, most: int = BATCH) -> list[bytes]: ...

    @abstractmethod
    async def settle(self, last: int, dead: list[Dead]) -> None: ...

    @abstractmethod
    async def end(self) -> None:
        """Leave nothing behind but messages. Raises where a server is away: ``remains`` tells what is left then."""

    @abstractmethod
    async def _begin(self, past: int) -> tuple[str, int, int]:
        """Who we are there, with a token larger than ``past`` and all before; and the number of the last settled.

        Raises ``Fenced`` where another one has begun.
        """

    async def wait(self, first: int) -> list[bytes] | None:
        return None

    async def run(self, limit: int | None, note: Callable[[int], object], broken: Callable[[str], object]) -> None:
        """Carry at most ``limit`` messages, over a link that may break; ``note`` has how many have arrived."""
        failed, progress = 0, (self.moved.messages, time.monotonic())
        while True:
            try:
                # A task of its own: one that has seen a group of tasks fail counts as cancelled, in Python 3.11.
                await asyncio.create_task(self._carry(limit, note))
            except (ExceptionGroup, RedisError, HereError) as errors:
                error = first_of(errors)
                if progress[0] != self.moved.messages:
                    failed, progress = 0, (self.moved.messages, time.monotonic())
                if not _passes(error) or self.stopped or time.monotonic() - progress[1] > PERSEVERANCE:
                    raise error from None
                failed += 1
                if failed == 1:
                    broken(str(error))
            else:
                return
            finally:
                await self._wire.close()
            await asyncio.sleep(BACKOFF.delay_after(failed))

    async def _carry(self, limit: int | None, note: Callable[[int], object]) -> None:
        self._largest = await largest_message(self._there)  # while the wire, the only connection there, is closed
        target, settled = await self._agree()
        begun = self._begun or 0

        def arrived(batch: Batch) -> None:
            note(batch.last - begun)

        rest = _Rest(self, None if limit is None else begun + limit)
        await Transfer(rest, target, WINDOW, lambda: WINDOW_BYTES, note=arrived).run(settled)
        if self.too_large:
            raise self._refused(self.too_large)

    async def _agree(self) -> tuple[Target, int]:
        """Be the one whose messages count there, and settle those that have arrived; the number of the last one."""
        past = 0
        while True:
            source, token, settled = await self._begin(past)
            if self._begun is None:
                self._begun = self._settled = settled
            self._reached(settled)
            self._ledger = self._ledger_of(source)
            target = Target(self._wire, self._out, source, token)
            arrived = await target.meet()
            if (past := arrived.token) >= token:
                continue
            try:
                caught_up = await catch_up(self, arrived, settled)
            except TargetLost as error:
                raise TargetLost(f"{error}: {self.way_out}") from None
            if caught_up is None:
                raise SourceLost(
                    f"{arrived.last - settled:,} messages that arrived are not here any more: {self.way_out}"
                )
            return target, caught_up

    def fitting(self, first: int, messages: list[bytes]) -> list[bytes]:
        """Those of ``messages``, from number ``first`` on, that come before one that is too large."""
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
        """Where in the list a message is once this has ended, counted from 1 at the old end."""
        return number - self._settled

    def _ledger_of(self, source: str) -> bytes:
        return encoded(f"{self._out}:from:{source}")

    def _took(self, first: int, messages: list[bytes]) -> list[bytes]:
        self._sizes += map(len, messages[self._settled + len(self._sizes) - first + 1 :])
        return messages

    def _reached(self, last: int) -> None:
        count = last - self._settled
        self.moved.messages += count
        self.moved.bytes += sum(self._sizes[:count])
        del self._sizes[:count]
        self._settled = last


class _Rest:
    """What of a shovel's messages one run carries: those up to number ``last`` that fit, until it shall stop."""

    def __init__(self, shovel: Shovel, last: int | None) -> None:
        self._shovel, self._last = shovel, last
        self.settle, self.wait = shovel.settle, shovel.wait

    async def take(self, first: int) -> list[bytes]:
        most = BATCH if self._last is None else min(BATCH, self._last - first + 1)
        if too_large := self._shovel.too_large:
            most = min(most, too_large.number - first)
        if self._shovel.stopped or most <= 0:
            return []
        return self._shovel.fitting(first, await self._shovel.take(first, most))
