"""Wake the consumptions of one queue when messages come: one of those that take them, each of those that read them."""

import asyncio
from math import inf
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from penstock.bus.host import Host
from penstock.bus.keys import whole
from penstock.core.instance import Instance
from penstock.core.wire import Subscriber

_wakers: "Final[WeakKeyDictionary[Instance, dict[bytes, Waker]]]" = WeakKeyDictionary()


class Member(Protocol):
    """A consumption: ``wake`` ends its wait, ``note_doubt`` says that the queue's ids may have begun anew, and
    ``note_restart`` that they have."""

    def wake(self) -> None: ...
    def note_doubt(self) -> None: ...
    def note_restart(self) -> None: ...


class Waker:
    """What the consumptions of one queue in this process know together of messages that may wait.

    ``more`` says that a member has to look; it calls ``looks`` first, which clears it. One idle member is woken for it.
    """

    def __init__(self, subscriber: Subscriber, channel: bytes) -> None:
        self.more = False
        self.members = list[Member]()
        self._idle = list[Member]()
        self._subscriber, self.channel = subscriber, channel
        self._confirmed: asyncio.Future[None]
        self._taken = 0
        """The highest id that a member has taken or read."""
        self._heard = 0.0
        """The highest id that was announced since a member last began to look."""
        self._highest = 0
        """The highest id that was announced since the subscription."""

    @classmethod
    def of(cls, instance: Instance, channel: bytes, *, shared: bool) -> "Waker":
        """Return one for a consumption: with ``shared`` the one that all others of this process have."""
        waker = cls(instance.subscriber, channel)
        return wakers_of(instance).setdefault(channel, waker) if shared else waker

    async def join(self, member: Member) -> None:
        """Add ``member``, and return once it would hear of new messages; it has to look for those that wait already."""
        if not self.members:
            self._confirmed = self._subscriber.add(self.channel, self._announced)
        self.members.append(member)
        await asyncio.shield(self._confirmed)
        self.ring()

    def leave(self, member: Member) -> None:
        """Remove ``member``; another one looks if it was to look."""
        if member in self.members:
            self.members.remove(member)
            if not self.members:
                self._subscriber.remove(self.channel, self._announced)
        self.end_idle(member)

    def idle(self, member: Member) -> None:
        """Have ``member`` woken for the next messages, if no other is."""
        self._idle.append(member)

    def end_idle(self, member: Member) -> None:
        """Have ``member`` not woken any more; another one is if there was a reason to."""
        if member in self._idle:
            self._idle.remove(member)
        elif self.more:
            self.ring()

    def ring(self) -> None:
        """Have one member look for messages."""
        self.more = True
        if self._idle:
            self._idle.pop(0).wake()

    def looks(self) -> None:
        """Note that a member looks now, and will see all messages announced so far."""
        self.more, self._heard = False, 0.0

    def found(self, last: int, remaining: int) -> None:
        """Note that a member has found messages up to the id ``last``, 0 for none, and that others remain."""
        self._taken = last or self._taken  # lower than before if ids have begun anew
        if remaining > 0 or self._heard > self._taken:
            self.ring()

    def restart(self) -> None:
        """Note that ids have begun anew."""
        self._taken = self._highest = 0
        for member in self.members:
            member.note_restart()
        self._heard = inf
        self.ring()

    def _doubt(self) -> None:
        for member in self.members:
            member.note_doubt()

    def _announced(self, payload: bytes | None) -> None:
        """Hear the id of a new message; None if some may have been missed, 0 if others came back."""
        number = whole(payload) if payload is not None else None
        if not number:
            self._heard = inf
            if payload is None:
                self._highest = 0
                self._doubt()
            self.ring()
        elif self._highest and number <= self._highest:  # closed and created anew by one who does not say so, as busmq
            self._taken, self._highest, self._heard = 0, number, inf
            self._doubt()
            self.ring()
        else:
            if not self._highest and number <= self._taken:  # late, or of a queue that was created anew
                self._taken = 0
            self._highest = number
            self._heard = max(self._heard, number)
            if number > self._taken:
                self.ring()


def wakers_of(instance: Instance) -> dict[bytes, Waker]:
    """Return those of the queues on ``instance`` that are taken from, by the channel that announces new messages."""
    return _wakers.setdefault(instance, {})


async def join(waker: Waker, member: Member, instance: Instance, bus: Host) -> None:
    """Have ``member`` hear of new messages on ``instance``. Raise ``Unavailable`` if that takes too long."""
    async with bus.bounded(lambda: f"{instance.address} confirms no subscription: {instance.reason}"):
        await waker.join(member)


def leave(waker: Waker, member: Member, instance: Instance) -> None:
    """Have ``member`` hear of no new messages on ``instance`` any more."""
    waker.leave(member)
    if not waker.members and wakers_of(instance).get(waker.channel) is waker:
        del wakers_of(instance)[waker.channel]
