"""Take messages that are kept until they are acknowledged; an exclusive consumption holds a lease, too."""

import time
from contextlib import suppress
from typing import Any, Final

from penstock.base.errors import Fenced, Gone, Occupied, PenstockError
from penstock.bus.message import Message
from penstock.bus.scripts import ACK, POP, RELEASE, RESTORE
from penstock.bus.taking import LEASE_SECONDS, Taking
from penstock.core.raw_connection import pack
from penstock.core.wire import Reply

MAX_RESTORED: Final = 2_000
"""Maximum number of messages that one script gives back."""


class TakingReliably(Taking):
    """What brings the messages of a reliable consumption; those up to the id ``after_id`` are acknowledged before."""

    async def begin(self) -> None:
        """Give back what was not acknowledged. Raise ``Occupied`` if another consumer has the queue alone."""
        begun = time.monotonic()
        try:
            await self._restore(1, begins=True)
        except Gone:
            if not await self.queue.note_gone(begun):
                raise
            begun = time.monotonic()
            await self._restore(1, begins=True)
        self.consumption.note_lease(begun)

    def packed(self, most: int) -> bytes:
        """Return the call that takes at most ``most`` messages."""
        return pack([POP.by_digest(**self.named(most))])

    async def take(self, most: int, sent: Reply | None) -> Any:  # what was sent is in `toack`
        """Take messages; first give back what was taken without this consumption knowing, as a reply was lost."""
        consumption = self.consumption
        first = consumption.ahead.taken_id + 1
        while not consumption.stopping:
            begun = time.monotonic()
            try:
                found = await self.queue.call(POP, **self.named(most))
                if found[0] >= 0:
                    consumption.note_lease(begun)
                    return found
                await self._restore(first)
            except Gone:
                return [0]
            except (Fenced, Occupied):
                consumption.note_fenced()
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
        if self.consumption.exclusive:
            with suppress(PenstockError):
                await self.queue.instance.run(RELEASE, lease=self.queue.lease, who=self.consumption.who)

    def named(self, most: int) -> dict[str, Any]:
        """Return the keys and arguments of the script that takes messages."""
        named = super().named(most) | {"toack": self.queue.keys[3], "last": self.consumption.ahead.taken_id}
        return named | {"lease": self.queue.lease} if self.consumption.exclusive else named

    async def _restore(self, first: int, *, begins: bool = False) -> None:
        """Give back what was handed out and not acknowledged, from the id ``first`` on."""
        queue, (metadata, messages, _, toack) = self.queue, self.queue.keys
        named: dict[str, Any] = {"metadata": metadata, "toack": toack, "messages": messages, "lease": queue.lease}
        named |= {"seconds": LEASE_SECONDS if self.consumption.exclusive and begins else 0, "who": self.consumption.who}
        named |= {"channel": queue.available, "first": first, "ttl": queue.seconds}
        if begins and self.mode.after_id:
            await queue.call(RESTORE, **named, most=0)  # the lease comes first: nothing of another's is dropped
            await self._drop_acknowledged()
        with suppress(*(() if begins else (Gone,))):  # while it runs, there is nothing to give back then
            while await queue.call(RESTORE, **named, most=MAX_RESTORED) == MAX_RESTORED:
                pass

    async def _drop_acknowledged(self) -> None:
        metadata, _, _, toack = self.queue.keys
        named: dict[str, Any] = {"metadata": metadata, "toack": toack, "who": self.consumption.who}
        named |= {"last": self.mode.after_id, "handed": 0, "ttl": self.queue.seconds}
        with suppress(Gone):
            while await self.queue.call(ACK, **named, most=MAX_RESTORED) == MAX_RESTORED:
                pass
