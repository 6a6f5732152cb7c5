"""How a consumption gets messages: it takes and forgets them, keeps them until they are acknowledged, or reads them."""

import itertools
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha1
from itertools import repeat
from math import inf
from typing import Any, Final, Protocol

from penstock.base.errors import Fenced, Gone, Occupied, PenstockError, Unconfirmed
from penstock.base.log import Log
from penstock.bus.keys import whole
from penstock.bus.message import Acknowledging, Message
from penstock.bus.mode import Mode
from penstock.bus.place import Place
from penstock.bus.scripts import ACK, POP, PUT_BACK, READ, RELEASE, RESTORE
from penstock.core.raw_connection import pack
from penstock.core.wire import Reply

LEASE_SECONDS: Final = 10
"""How long a consumer that has its queue alone lives without a sign of life."""
_numbers: Final = itertools.count(1)
MAX_PUT_BACK: Final = 1_000
"""Maximum number of messages that one script is sent to put back."""
MAX_RESTORED: Final = 2_000
"""Maximum number of messages that one script gives back."""
MAX_COMPARED: Final = 1 << 12
"""Largest message (bytes) that is compared with the one that was read each time, and not only if ids are in doubt."""
_log: Final = Log("penstock.bus")


class Claim:
    """Messages that were taken and not handed out, oldest first, by one consumption of the queue ``place``.

    ``fenced`` is called once another consumer may have the queue, ``lapsed`` if another one may have had it.
    """

    def __init__(
        self, place: Place, *, exclusive: bool, fenced: Callable[[], None], lapsed: Callable[[], None]
    ) -> None:
        self.place, self.exclusive, self.lapsed = place, exclusive, lapsed
        self.who = f"{place.bus.id}:{next(_numbers)}"
        """Its name in the lease."""
        self.messages: Final = deque[Message]()
        self.taken_id = self.handed_id = 0
        """The last id that was taken, and handed out."""
        self.is_fenced = self.is_over = False
        """Whether another consumer may have the queue; whether nothing more shall be handed out."""
        self._fenced = fenced
        self.leased_until = inf
        """Until when (monotonic) nobody else can have the queue; infinite without a lease."""

    @property
    def is_leased(self) -> bool:
        """Return whether its lease is to be renewed."""
        return self.leased_until < inf and not self.is_over

    @property
    def is_overdue(self) -> bool:
        """Return whether its lease may have ended."""
        return self.leased_until < inf and time.monotonic() > self.leased_until

    def note_lease(self, since: float) -> None:
        """Note that nobody else had the queue at ``since`` (monotonic), nor will have before the lease ends."""
        if self.exclusive:
            self.leased_until = since + LEASE_SECONDS
            self.place.bus.renew(self)

    def note_fenced(self) -> None:
        """Note that the lease has ended and another consumer may have the queue."""
        self.is_fenced = True
        self._fenced()

    def put_back(self, message: Message) -> None:
        """Hand out ``message`` again as the next one."""
        self.messages.appendleft(message)
        self.handed_id = message.id - 1 if message.id else self.handed_id

    def add(self, lists: list[list[Any]], source: Acknowledging) -> int:
        """Add the messages of ``lists`` of id, body, and so on; return the last id, 0 if none is a number."""
        last = 0
        for words in lists:
            ids = [whole(word) or 0 for word in words[::2]]
            self.messages.extend(map(Message, words[1::2], ids, repeat(source)))
            last = next(filter(None, reversed(ids)), last)
        self.taken_id = last or self.taken_id
        return last

    def forget(self) -> int:
        """Drop all, so that they are taken anew; return how many."""
        many = len(self.messages)
        self.messages.clear()
        self.taken_id = self.handed_id
        return many

    def restart(self) -> None:
        """Note that ids begin anew."""
        self.taken_id = self.handed_id = 0

    def remove_all(self, into: list[Message]) -> None:
        """Move all to ``into``, one by one: another thread may take some meanwhile."""
        while self.messages:
            try:
                into.append(self.messages.popleft())
            except IndexError:
                return


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

    def __init__(self, place: Place, mode: Mode, claim: Claim) -> None:
        self.place, self.mode, self.claim = place, mode, claim
        self._last_packed: tuple[tuple[int, int], bytes] = (0, 0), b""

    async def begin(self) -> None:
        """Do nothing."""

    def packed(self, most: int) -> bytes:
        """Return the call that takes at most ``most`` messages."""
        shape = most, self.place.seconds
        if self._last_packed[0] != shape:
            self._last_packed = shape, pack([POP.by_digest(**self.named(most))])
        return self._last_packed[1]

    async def take(self, most: int, sent: Reply | None) -> Any:
        """Take messages, unless the call was ``sent`` and the server has executed it."""
        while True:
            try:
                return await self.place.finish(sent, POP, **self.named(most))
            except Gone:  # the bus finds out why when it keeps the queue alive
                return [0]
            except Unconfirmed as error:
                sent = None
                _log.warning("messages may be lost", queue=self.place.name, most=most, reason=str(error))
                self.place.emit("error", error)

    async def give_back(self, left: list[Message]) -> None:
        """Put ``left`` back as the oldest messages."""
        metadata, messages, *_ = self.place.keys
        named = {"metadata": metadata, "messages": messages, "channel": self.place.available}
        while left:
            taken = [word for each in left[-MAX_PUT_BACK:] for word in (str(each.id), each.body)]
            await self.place.call_once(PUT_BACK, **named, taken=taken)
            del left[-MAX_PUT_BACK:]

    def note_doubt(self) -> None:
        """Do nothing: it takes whatever is there."""

    def note_restart(self) -> None:
        """Do nothing, as for ``note_doubt``."""

    def named(self, most: int) -> dict[str, Any]:
        """Return the keys and arguments of the script that takes messages."""
        metadata, messages, *_ = self.place.keys
        named: dict[str, Any] = {"metadata": metadata, "messages": messages, "who": self.claim.who}
        named |= {"seconds": LEASE_SECONDS, "ttl": self.place.seconds}
        return named | {"most": most, "bytes": self.mode.prefetch_bytes, "last": 0}


class TakingReliably(Taking):
    """What brings the messages of a reliable consumption; those up to the id ``after_id`` are acknowledged before."""

    async def begin(self) -> None:
        """Give back what was not acknowledged. Raise ``Occupied`` if another consumer has the queue alone."""
        begun = time.monotonic()
        try:
            await self._restore(1, begins=True)
        except Gone:
            if not await self.place.note_gone(begun):
                raise
            begun = time.monotonic()
            await self._restore(1, begins=True)
        self.claim.note_lease(begun)

    def packed(self, most: int) -> bytes:
        """Return the call that takes at most ``most`` messages."""
        return pack([POP.by_digest(**self.named(most))])

    async def take(self, most: int, sent: Reply | None) -> Any:  # what was sent is in `toack`
        """Take messages; first give back what was taken without this consumption knowing, as a reply was lost."""
        claim = self.claim
        first = claim.taken_id + 1
        while not claim.is_over:
            begun = time.monotonic()
            try:
                found = await self.place.call(POP, **self.named(most))
                if found[0] >= 0:
                    claim.note_lease(begun)
                    return found
                await self._restore(first)
            except Gone:
                return [0]
            except (Fenced, Occupied):
                claim.note_fenced()
                return [0]
            first = 1  # if that was not enough, somebody else has consumed, or ids have begun anew
        return [0]

    async def give_back(self, left: list[Message]) -> None:
        """Give back ``left``, with what else has no lower id; end the lease."""
        first = next((each.id for each in left if each.id), 0)
        left[:] = [each for each in left if not each.id]  # `toack` does not have them
        await super().give_back(left)
        if first:
            await self._restore(first)
        if self.claim.exclusive:
            with suppress(PenstockError):
                await self.place.instance.run(RELEASE, lease=self.place.lease, who=self.claim.who)

    def named(self, most: int) -> dict[str, Any]:
        """Return the keys and arguments of the script that takes messages."""
        named = super().named(most) | {"toack": self.place.keys[3], "last": self.claim.taken_id}
        return named | {"lease": self.place.lease} if self.claim.exclusive else named

    async def _restore(self, first: int, *, begins: bool = False) -> None:
        """Give back what was handed out and not acknowledged, from the id ``first`` on."""
        place, (metadata, messages, _, toack) = self.place, self.place.keys
        named: dict[str, Any] = {"metadata": metadata, "toack": toack, "messages": messages, "lease": place.lease}
        named |= {"seconds": LEASE_SECONDS if self.claim.exclusive and begins else 0, "who": self.claim.who}
        named |= {"channel": place.available, "first": first, "ttl": place.seconds}
        if begins and self.mode.after_id:
            await place.call(RESTORE, **named, most=0)  # the lease comes first: nothing of another's is dropped
            await self._drop_acknowledged()
        with suppress(*(() if begins else (Gone,))):  # while it runs, there is nothing to give back then
            while await place.call(RESTORE, **named, most=MAX_RESTORED) == MAX_RESTORED:
                pass

    async def _drop_acknowledged(self) -> None:
        metadata, _, _, toack = self.place.keys
        named: dict[str, Any] = {"metadata": metadata, "toack": toack, "who": self.claim.who}
        named |= {"last": self.mode.after_id, "handed": 0, "ttl": self.place.seconds}
        with suppress(Gone):
            while await self.place.call(ACK, **named, most=MAX_RESTORED) == MAX_RESTORED:
                pass


class Reading:
    """What brings messages to a consumption that removes none."""

    def __init__(self, place: Place, mode: Mode, claim: Claim) -> None:
        self._place, self._claim, self._size = place, claim, mode.prefetch_bytes
        self._index = mode.start
        """The place of the next message."""
        self._last, self._last_body, self._doubts = mode.after_id, b"", False
        """The message before ``_index``, and whether it may be another one by now."""

    async def begin(self) -> None:
        """Do nothing."""

    def packed(self, most: int) -> None:
        """Return None: what is read is not sent ahead."""

    async def take(self, most: int, sent: Reply | None) -> list[Any]:
        """Read the next messages."""
        self._index, *found = await self._read(most)
        if words := [word for each in found[1:] for word in each]:
            self._index += len(words) // 2
            self._last, self._last_body = whole(words[-2]) or 0, words[-1]
        return found

    async def give_back(self, left: list[Message]) -> None:
        """Forget ``left``, which the queue still has."""
        left.clear()

    def note_doubt(self) -> None:
        """Note that ids may have begun anew: what was read last is compared before more is read."""
        self._doubts = True

    def note_restart(self) -> None:
        """Read from the beginning."""
        self._index = self._last = 0
        self._last_body = b""

    async def _read(self, most: int) -> list[Any]:
        metadata, messages, msgid, _ = self._place.keys
        named: dict[str, Any] = {"metadata": metadata, "messages": messages, "msgid": msgid}
        named |= {"index": self._index, "last": self._last, "most": most, "bytes": self._size}
        compares = self._claim.taken_id > 0 and (self._doubts or len(self._last_body) <= MAX_COMPARED)
        self._doubts = False
        named["digest"] = sha1(self._last_body, usedforsecurity=False).hexdigest() if compares else ""
        try:
            found: list[Any] = await self._place.call(READ, **named)
        except Gone:  # the bus finds out why when it keeps the queue alive
            return [self._index, 0]
        return found
