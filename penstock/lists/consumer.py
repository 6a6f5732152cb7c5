"""One consumer of a list: hand out messages, settle them, put back what was not handled."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError, Unavailable, WrongCall
from penstock.base.log import Log, describe
from penstock.core.link import BACKOFF
from penstock.core.pace import Pace
from penstock.lists.holding import OWN, Burial, Holding
from penstock.lists.message import Message
from penstock.lists.settlement import CANCELLED, DIED, SETTLE_SECONDS, Ending, Results
from penstock.lists.turn import Turn

if TYPE_CHECKING:
    from penstock.lists.lists import Lists

LEAVE_SECONDS: Final = 5.0
"""Longest time (s) that a stop takes to put back what was not handled; after that others adopt it."""
MAX_ERROR_LENGTH: Final = 1_000
"""Maximum number of characters of an error that are kept."""
NOT_IN_HAND: Final = "a message is handled once, before the next one is taken"
TURNS: Final = 3
"""Turns of the event loop after which a generator that was dropped is being closed."""
_log: Final = Log("penstock.lists")


class _Loop:
    """What the frame of a loop over messages holds."""


class Consumer:
    """Takes the messages of one list, oldest first, into a list of its own: see ``Holding``."""

    def __init__(
        self, lists: "Lists", source: bytes, prefetch: int, prefetch_bytes: int, burial: Burial | None = None
    ) -> None:
        if prefetch < 1 or prefetch_bytes < 1:
            raise WrongCall(f"prefetch={prefetch}, prefetch_bytes={prefetch_bytes}: expected at least 1 of each")
        self.lists, self._source, self._burial = lists, source, burial
        self.holding = Holding(lists, source, prefetch, prefetch_bytes, burial)
        self._own = frozenset(source + end for end in OWN)
        self._settles_each = burial is not None and burial.attempts == 1
        """Whether messages are settled one by one: the first death counts, so the oldest must be what is in hand."""
        self._pace = Pace(SETTLE_SECONDS, prefetch)
        self._in_hand: Message | None = None
        self._comes_in_batches = False
        """Whether messages come several at a time: then those behind the next one are taken with it."""
        self._leaving = Turn()
        self._loop: weakref.ref[_Loop] | None = None

    async def messages(self) -> AsyncIterator[Message]:
        """See ``List.messages``."""
        loop = self.begin_loop()
        try:
            while batch := await self.batch():
                for message in batch:
                    if not self.ends_itself(message):
                        yield self.hand_out(message)
                    if self.ends_batch() or (self.is_due() and not await self.settle()):
                        break
        except BaseException as error:
            await self.leave(error)
            raise
        await self.leave()
        del loop

    def begin_loop(self) -> object:
        """Return what the loop over messages has to hold on to: once that is gone, the loop is over."""
        loop = _Loop()
        self._loop = weakref.ref(loop)
        return loop

    @property
    def is_abandoned(self) -> bool:
        """Return whether an interrupt has kept a loop that is over from leaving."""
        return self._loop is not None and self._loop() is None

    async def batch(self) -> list[Message]:
        """Settle what was handled and return the next messages, oldest first; none once all consumers shall stop."""
        await self.enter()
        return await self._prepare(await self._next())

    async def enter(self) -> None:
        """Have the lease renewed from now on, until ``leave``."""
        self.lists.check_entered()
        if self not in self.lists.consumers:
            await self._let_others_leave()
            self.lists.raise_unsettled(self._source)
            self.lists.consumers.add(self)

    async def _let_others_leave(self) -> None:
        """Wait for the loops over the same list that are ending: what they put back comes first."""
        for _ in range(TURNS):
            await asyncio.sleep(0)  # the loop closes a dropped generator in a task of its own
        for other in tuple(self.lists.consumers):
            if other._source == self._source and (other._leaving.is_taken or other.is_abandoned):
                await other.leave(GeneratorExit())

    def hand_out(self, message: Message) -> Message:
        """Note that ``message`` is in hand, and return it."""
        self._in_hand = message
        return message

    def ends_itself(self, message: Message) -> bool:
        """Return whether ``message`` is not to be handed out; then it has been handled."""
        if self._burial is None or message.attempt <= self._burial.attempts:
            return False
        self.holding.settlement.note_failed(DIED)
        return True

    def ends_batch(self) -> bool:
        """Return whether the rest of the batch goes back. Raise ``WrongCall`` if the last message was not handled."""
        if self._in_hand is not None:
            raise WrongCall("a message was not handled: expected `with message:` around its handling")
        return self.lists.stopping

    def is_due(self) -> bool:
        """Return whether to settle before the next message of the batch."""
        return self._settles_each or self.holding.settlement.is_due

    async def settle(self) -> bool:
        """Settle what was handled. Return False if the lease has ended: then others have the rest of the batch."""
        return await self.holding.take(0) is not None

    async def _prepare(self, bodies: list[bytes]) -> list[Message]:
        if not self.holding.failures:
            return [Message(body, self) for body in bodies]
        return [Message(body, self, failures) for body, failures in self.with_failures(bodies)]

    def with_failures(self, bodies: list[bytes]) -> Iterable[tuple[bytes, int]]:
        """Return each of ``bodies``, the messages taken last, and how often it has failed."""
        return zip(bodies, self.holding.failures or repeat(0), strict=False)

    def note_end(self, message: Message, results: Results, failures: int) -> None:
        """Note that ``message`` was handled, what it pushes, and how often it had failed before."""
        if self._in_hand is not message:
            raise WrongCall(NOT_IN_HAND)
        self.holding.settlement.note_end(results, failures)
        self._in_hand = None  # last: what is in hand no more was noted

    def note_failed(self, message: Message, error: BaseException | None) -> None:
        """Note that ``error`` ended the handling of ``message``: a failure, unless it was cancelled."""
        if self._in_hand is not message:
            raise WrongCall(NOT_IN_HAND)
        words: Ending = CANCELLED
        if isinstance(error, Exception):
            words = describe(error)[:MAX_ERROR_LENGTH] if self._burial else ""
        self.holding.settlement.note_failed(words)
        self._in_hand = None

    def check_result(self, message: Message, target: bytes) -> None:
        """Raise ``WrongCall`` unless ``message`` is in hand, and a result of it may go to ``target``."""
        if self._in_hand is not message:
            raise WrongCall("also_push belongs to the message in hand: call it inside `with message:`")
        if target in self._own:
            raise WrongCall(f"{decoded(target)} belongs to the consumers of the list: push results to another key")

    async def renew(self) -> None:
        """Extend the lease, and cut a connection that is silent."""
        await self.holding.renew()

    async def cut(self) -> None:
        """Cut its connection, which does not answer."""
        await self.holding.raw.cut_if_silent(0)

    @property
    def waits(self) -> bool:
        """Return whether it waits for a message in the server."""
        return self.holding.waits

    @property
    def connection_id(self) -> int | None:
        """The CLIENT ID of the connection that waits."""
        return self.holding.raw.id

    async def leave(self, ending: BaseException | None = None) -> None:
        """Settle what was handled and put back the rest; if the server is away, others adopt it later.

        Raise what has kept handled messages from being settled: they come again. If the loop is ``ending`` by an error
        or a ``break``, nobody would hear it here: the next loop over the list raises it, or the end of ``Lists``.
        """
        async with self._leaving:
            if self not in self.lists.consumers:
                return
            self._in_hand = None
            self.holding.settlement.keep_last_failed()
            try:
                await self._put_back()
            except (PenstockError, RedisError, OSError) as error:
                if ending is None:
                    raise
                if not _is_told(ending):
                    self.lists.keep_unsettled(self._source, error)
            finally:
                self.lists.consumers.discard(self)
                await self.holding.close()

    async def _put_back(self) -> None:
        settlement, name = self.holding.settlement, decoded(self._source)
        handled = settlement.handled - settlement.kept
        try:
            async with asyncio.timeout(LEAVE_SECONDS if self.lists.stopping else None):
                await self.holding.put_back()
        except (PenstockError, RedisError, OSError) as error:  # a TimeoutError, too
            away = isinstance(error, Unavailable | TimeoutError)
            reason = str(error) or "no answer"
            if away:
                held = {"list": name, "consumer": self.holding.id, "reason": reason}
                _log.warning("not put back: others adopt it when the lease ends", **held)
                if not handled:
                    return
            note = f"handled, not settled, so that they come again: {handled:,} of {name}"
            if isinstance(error, TimeoutError):
                raise Unavailable(f"{reason}: {note}") from error
            error.add_note(note)
            raise

    async def _next(self) -> list[bytes]:
        """Settle what was handled and return the next messages, oldest first; none once all consumers shall stop."""
        while not self.lists.stopping:
            size = self._pace.size()
            if self.holding.settlement.failures:  # what failed comes again at once
                await asyncio.sleep(BACKOFF.delay_after(self.holding.settlement.failures))
            found = await self.holding.take(size)
            self._pace.begin()
            if found:
                self._comes_in_batches = True
                return found
            if found is not None and (found := await self.holding.wait(size if self._comes_in_batches else 1)):
                self._comes_in_batches = len(found) > 1
                self.holding.settlement.note_waited()
                self._pace.begin()
                return found
        return []


def _is_told(ending: BaseException) -> bool:
    """Return whether the loop ends by an error of the server already."""
    return isinstance(ending, PenstockError | RedisError) and not isinstance(ending, WrongCall)
