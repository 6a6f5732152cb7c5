"""Fill what a consumption hands out: take messages if there may be some, else wait to be woken."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from penstock.bus.mode import Mode
from penstock.bus.reading import Reading
from penstock.bus.taking import Intake, Taking
from penstock.bus.taking_reliably import TakingReliably
from penstock.bus.under_way import UnderWay
from penstock.bus.waker import Waker, join, leave
from penstock.core.pace import Pace
from penstock.core.wire import Reply

if TYPE_CHECKING:
    from penstock.bus.consumption import Consumption
    from penstock.core.instance import Instance

HANDLING_SECONDS: Final = 0.05
"""Seconds for which messages are taken ahead."""


class Filler:
    """Takes the messages of one consumption."""

    def __init__(self, consumption: "Consumption", mode: Mode) -> None:
        self.intake = _intake(consumption, mode)
        self.work = UnderWay()
        self.limit = mode.limit
        """Maximum number of messages still to be taken; None without limit."""
        self.woken = asyncio.Event()
        self.pace = Pace(HANDLING_SECONDS, mode.prefetch)
        self._consumption, self._removes = consumption, mode.remove
        self._queue, self._ahead = consumption.queue, consumption.ahead
        self._waker: Waker | None = None
        self._idles = False

    async def fill(self) -> None:
        """Return once there are messages, or shall be no more."""
        while not self._consumption.stopping and not self._ahead.messages and self.limit != 0:
            assert self._waker is not None
            if self._waker.more:
                self._waker.looks()
                await self._look(self._waker)
            else:
                await self._idle(self._waker)

    def wake(self) -> None:
        """Have it look whether there are messages, at once if it is idle, or whether it shall end."""
        waker = self._waker
        if self._idles and waker is not None and waker.more and not self._consumption.stopping:
            waker.looks()
            if self._send_pop(waker):
                self._idles = False
                return
            waker.more = True
        self.woken.set()

    def look(self) -> None:
        """Have a consumption of the queue look whether there are messages."""
        if self._waker is not None:
            self._waker.ring()

    async def join(self) -> None:
        """Hear of new messages from now on."""
        self._waker = Waker.of(self._queue, shared=self._removes)
        await join(self._waker, self._consumption, self._queue)

    def leave(self, instance: "Instance | None" = None) -> None:
        """Hear of no new messages on ``instance``, by default the queue's, any more."""
        if self._waker is not None:
            leave(self._waker, self._consumption, self._queue, instance or self._queue.instance)

    async def move(self, old: "Instance") -> None:
        """Go on where the queue is now, and not on ``old``."""
        if self._waker is not None:
            self.leave(old)
            await self.join()
            self.wake()

    def restart(self) -> None:
        """Look again, since ids begin anew."""
        if self._waker is not None:
            self._waker.restart()

    def forget(self) -> None:
        """Take anew what was not handed out."""
        many = self._ahead.forget()
        if self.limit is not None:
            self.limit += many
        self.look()

    async def _idle(self, waker: Waker) -> None:
        """Wait for a message, or ``stop``; take what has come."""
        self.woken.clear()
        self._idles = True
        waker.idle(self._consumption)
        try:
            await self.woken.wait()
        except BaseException:
            waker.end_idle(self._consumption)
            raise
        finally:
            self._idles = False
        await self.work.until_done()

    async def _look(self, waker: Waker) -> None:
        """Take the next messages; if this call is cancelled, that goes on: ``stop`` waits for it."""
        if sent := self._send_pop(waker):
            with suppress(RedisError):
                await sent
            await self.work.until_done()
        else:
            await self.work.wait_for(asyncio.ensure_future(self._take(self._batch_size(), waker)))

    def _batch_size(self) -> int:
        size = self.pace.size()
        return size if self.limit is None else min(size, self.limit)

    def _send_pop(self, waker: Waker) -> Reply | None:
        """Send the call for the next messages. Return None if messages are read, or the server is away."""
        instance = self._queue.instance
        if not self._removes or instance.is_away:
            return None
        most = self._batch_size()
        then = partial(self._popped, most, waker, time.monotonic())
        packed = self.intake.packed(most)
        assert packed is not None
        sent = instance.send(packed, then)
        self.work.note_sent()
        return sent

    def _popped(self, most: int, waker: Waker, begun: float, sent: Reply) -> None:
        """Store the messages of a call that was sent at ``begun``; start ``_take`` if it failed."""
        ended = self.work.note_reply()
        if sent.error or sent.value()[0] < 0:
            self.work.go_on(self._consumption.queue.bus.spawn(self._take(most, waker, sent)))
        else:
            self._consumption.note_lease(begun)
            self._took(sent.value(), waker)
        if ended and not ended.done():
            ended.set_result(None)
        self.woken.set()

    async def _take(self, most: int, waker: Waker, sent: Reply | None = None) -> None:
        try:
            found = await self.intake.take(most, sent)
        except BaseException:
            waker.ring()  # so that another one looks
            raise
        self._took(found, waker)

    def _took(self, found: list[Any], waker: Waker) -> None:
        """Keep what a script has ``found``: how many messages remain, and lists of their ids and bodies."""
        remaining, *lists = found
        consumption = self._consumption
        last = self._ahead.add(lists, consumption if consumption.exclusive else self._queue)
        if self.limit is not None:
            self.limit -= sum(map(len, lists)) // 2
        waker.found(last, remaining)


def _intake(consumption: "Consumption", mode: Mode) -> Intake:
    """Return what brings messages to ``consumption``."""
    if not mode.remove:
        return Reading(consumption, mode)
    return TakingReliably(consumption, mode) if mode.reliable else Taking(consumption, mode)
