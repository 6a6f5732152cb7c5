"""A list as what a consumer takes from."""

from collections.abc import Iterable, Mapping
from itertools import repeat
from time import monotonic
from typing import ClassVar, Final

from penstock.base.encoding import decoded
from penstock.base.errors import WrongCall
from penstock.base.log import describe
from penstock.core.connection import MAX_SILENCE
from penstock.core.source import AT_ONCE, SETTLE_SECONDS
from penstock.lists.holding import OWN, Burial, Holding
from penstock.lists.message import Message
from penstock.lists.server import Server
from penstock.lists.settlement import CANCELLED, DIED, Ending, Results

MAX_ERROR_LENGTH: Final = 1_000
"""Maximum number of characters of an error that are kept."""
NOT_IN_HAND: Final = "a message is handled once, before the next one is taken"


class ListSource:
    """The messages of one list, in the form of ``penstock.core.source.Source``."""

    noun: ClassVar[str] = "message"
    alone: ClassVar[bool] = False

    def __init__(
        self, server: Server, source: bytes, prefetch: int, prefetch_bytes: int, burial: Burial | None = None
    ) -> None:
        if prefetch < 1 or prefetch_bytes < 1:
            raise WrongCall(f"prefetch={prefetch}, prefetch_bytes={prefetch_bytes}: expected at least 1 of each")
        self.server, self._burial = server, burial
        self.holding = Holding(server, source, prefetch, prefetch_bytes, burial)
        self.name, self._own = decoded(source), frozenset(source + end for end in OWN)
        self.renew_every = min(server.lease / 3, MAX_SILENCE / 2)
        self.due_at = AT_ONCE
        self.in_hand: Message | None = None
        self.judges = burial is not None
        self._comes_in_batches = False
        """Whether messages come several at a time: then those behind the next one are taken with it."""

    @property
    def facts(self) -> Mapping[str, str]:
        return {"list": self.name, "consumer": self.holding.id}

    @property
    def handled(self) -> int:
        return self.holding.settlement.handled - self.holding.settlement.kept

    @property
    def failures(self) -> int:
        return self.holding.settlement.failures

    @property
    def waits(self) -> bool:
        """Return whether it waits for a message in the server."""
        return self.holding.waits

    async def take(self, most: int) -> list[Message] | None:
        found = await self.holding.take(most)
        # after a death one by one, too: if this consumer dies, the oldest is what it had in hand
        is_due = self.holding.settles_each or self.holding.adopted
        self.due_at = AT_ONCE if is_due else monotonic() + SETTLE_SECONDS
        if found:
            self._comes_in_batches = True
        return await self._messages(found) if found else None if found is None else []

    async def wait(self, most: int) -> list[Message]:
        found = await self.holding.wait(most if self._comes_in_batches else 1)
        if not found:
            return []
        self._comes_in_batches = len(found) > 1
        if not self.holding.settles_each:
            self.due_at = monotonic() + SETTLE_SECONDS
        return await self._messages(found)

    async def _messages(self, bodies: list[bytes]) -> list[Message]:
        if not self.holding.failures:
            return [Message(body, self) for body in bodies]
        return [Message(body, self, failures) for body, failures in self.with_failures(bodies)]

    def with_failures(self, bodies: list[bytes]) -> Iterable[tuple[bytes, int]]:
        """Return each of ``bodies``, the messages taken last, and how often it has failed."""
        return zip(bodies, self.holding.failures or repeat(0), strict=False)

    def judge(self, message: Message) -> bool:
        if self._burial is None or message.attempt <= self._burial.attempts:
            return False
        self._note_failed(DIED)
        return True

    def note_end(self, message: Message, results: Results, failures: int) -> None:
        """Note that ``message`` was handled, what it pushes, and how often it had failed before."""
        if self.in_hand is not message:
            raise WrongCall(NOT_IN_HAND)
        settlement = self.holding.settlement
        settlement.note_end(results, failures)
        if results and settlement.is_full:
            self.due_at = AT_ONCE
        self.in_hand = None  # last: what is in hand no more was noted

    def note_failed(self, message: Message, error: BaseException | None) -> None:
        """Note that ``error`` ended the handling of ``message``: a failure, unless it was cancelled."""
        if self.in_hand is not message:
            raise WrongCall(NOT_IN_HAND)
        words: Ending = CANCELLED
        if isinstance(error, Exception):
            words = describe(error)[:MAX_ERROR_LENGTH] if self._burial else ""
        self._note_failed(words)
        self.in_hand = None

    def _note_failed(self, ending: Ending) -> None:
        self.holding.settlement.note_failed(ending)
        self.due_at = AT_ONCE

    def check_result(self, message: Message, target: bytes) -> None:
        """Raise ``WrongCall`` unless ``message`` is in hand, and a result of it may go to ``target``."""
        if self.in_hand is not message:
            raise WrongCall("also_push belongs to the message in hand: call it inside `with message:`")
        if target in self._own:
            raise WrongCall(f"{decoded(target)} belongs to the consumers of the list: push results to another key")

    async def interrupt(self) -> None:
        await self.holding.interrupt()

    async def renew(self) -> None:
        await self.holding.renew()

    async def renew_elsewhere(self) -> None:
        await self.holding.renew_elsewhere()

    async def give_back_ahead(self) -> None:
        await self.holding.put_back_ahead(lambda: self.in_hand is not None)

    async def give_back(self) -> None:
        self.holding.settlement.keep_last_failed()
        await self.holding.put_back()

    async def close(self) -> None:
        await self.holding.close()
