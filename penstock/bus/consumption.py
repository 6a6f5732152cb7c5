"""Consume a queue: take messages ahead, hand them out one by one, give back what was not."""

import asyncio
import itertools
import time
import weakref
from collections.abc import AsyncIterator
from math import inf
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from penstock.base.errors import Fenced, PenstockError, WrongCall
from penstock.base.log import Log
from penstock.bus.ahead import Ahead
from penstock.bus.filling import Filler
from penstock.bus.handing import Handing
from penstock.bus.message import Message
from penstock.bus.mode import Mode
from penstock.bus.taking import LEASE_SECONDS
from penstock.core.tasks import begin

if TYPE_CHECKING:
    from penstock.bus.queue import Queue
    from penstock.core.instance import Instance

_numbers: Final = itertools.count(1)
_log: Final = Log("penstock.bus")


class Consumption(Handing):
    """What ``Queue.consume`` returns: iterate over it, or await it to have handlers called."""

    queue: "Queue"

    def __init__(self, queue: "Queue", mode: Mode) -> None:
        super().__init__()
        self.queue, self.mode, self.reliable, self.exclusive = queue, mode, mode.reliable, mode.exclusive
        self.who = f"{queue.bus.id}:{next(_numbers)}"
        """Its name in the lease of an exclusive one."""
        self.ahead = Ahead()
        self.runs = self.is_fenced = self.stopping = False
        self._filler = Filler(self, mode)
        self._loop: weakref.ref[AsyncIterator[Message]] | None = None
        """The loop over it: asyncio closes one that was left in a task of its own, some time later."""
        self._leased_until = inf
        """Until when (monotonic) nobody else can have the queue."""
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    @property
    def lease_seconds(self) -> int:
        """Return for how long (s) its lease is renewed; 0 without one."""
        return LEASE_SECONDS if self.exclusive and self.runs and not self.stopping else 0

    @property
    def ends(self) -> bool:
        """Return whether it was stopped, or its loop was left: the next consumption waits for its end."""
        return self.stopping or (self._loop is not None and self._loop() is None)

    def __aiter__(self) -> AsyncIterator[Message]:
        if self._iterates:
            raise WrongCall("the queue is consumed by another loop: take another `bus.queue(...)` for this one")
        loop = self._messages()
        self._loop = weakref.ref(loop)
        return loop

    async def _messages(self) -> AsyncIterator[Message]:
        try:
            while await self.fetch():
                while message := self.next_taken():
                    yield message
        finally:
            await self.stop()

    def next_taken(self) -> Message | None:
        """Return the next message that was taken already, if any, and not after ``stop``. Any thread may call it."""
        if self.stopping or (self._leased_until < inf and time.monotonic() > self._leased_until):
            return None
        ahead = self.ahead
        try:
            message = ahead.messages.popleft()
        except IndexError:
            return None
        ahead.handed_id = message.id or ahead.handed_id
        self.queue.consumed += 1
        return message

    def take_back(self, message: Message) -> None:
        """Hand out ``message`` again as the next one, or give it back at the end."""
        self.ahead.put_back(message)
        self.queue.consumed -= 1

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """Acknowledge all messages up to ``id``. Raise ``Fenced`` once another consumer may have the queue."""
        return self.queue.ack_for(self, id)

    async def stop(self) -> None:
        """End it: what was taken and not handed out goes back, unless the queue was closed."""
        self.stopping = True
        self.wake()
        if self._ending is None:
            self._ending = begin(self._end(), _log)
        await asyncio.shield(self._ending)

    def wake(self) -> None:
        """Have it look whether there are messages, at once if it is idle, or whether it shall end."""
        self._filler.wake()

    def look(self) -> None:
        """Look for messages that nobody has announced."""
        self._filler.look()

    def note_attached(self) -> None:
        """Begin, since the queue that it waited for is attached."""
        self.wake()
        if self._iterates and not self.stopping:
            self._note_runs()

    def note_restart(self) -> None:
        """Note that the queue was created again, so that ids begin anew."""
        self.ahead.restart()
        self._filler.intake.note_restart()

    def note_doubt(self) -> None:
        """Note that ids may have begun anew."""
        self._filler.intake.note_doubt()

    def note_recreated(self) -> None:
        """Look again, since the queue was created again."""
        self._filler.restart()

    def note_closed(self) -> None:
        """End, since somebody closed the queue."""
        self._closed = True
        self._drop()

    def note_fenced(self) -> None:
        """End, since the lease has ended and another consumer may have the queue."""
        self.is_fenced = True
        if self.runs:
            self._error = Fenced(f"queue {self.queue.name}: the lease has ended, another consumer may have it")
            self._drop()

    def note_lease(self, since: float) -> None:
        """Note that nobody else had the queue at ``since`` (monotonic), nor will have before the lease ends."""
        if self.exclusive:
            self._leased_until = since + LEASE_SECONDS
            self.queue.bus.watch()

    def note_lapse(self) -> None:
        """Take anew what was not handed out, since the lease had ended and others may have handled it."""
        self._filler.forget()

    async def note_moved(self, old: "Instance") -> None:
        """Go on where the queue is now; ids go on."""
        await self._filler.move(old)

    async def fetch(self) -> bool:
        """Begin if it has not; take the next messages, wait for one. Return False once there shall be no more.

        A call that is cancelled loses nothing. Raise ``Fenced`` if the lease of an exclusive consumption has ended.
        """
        filler = self._filler
        await filler.work.until_ended()  # a call was cancelled
        if not self._iterates:
            await self._start_iterating()
        if self.ahead.messages and time.monotonic() > self._leased_until:
            self.note_lapse()
        await filler.fill()
        if self._error:
            raise self._error
        filler.pace.begin()
        return bool(self.ahead.messages) and not self.stopping

    async def _start_iterating(self) -> None:
        self._iterates = True
        for other in tuple(self.queue.consumptions):
            if other is not self and other.ends:
                await other.stop()
        await self._until_attached()
        await self._filler.work.wait_for(asyncio.ensure_future(self._begin()))

    async def _until_attached(self) -> None:
        """Wait for ``attach``, or ``stop``."""
        if self.queue.is_attached:
            return
        ready = asyncio.ensure_future(self.queue.wait_attached())
        stopped = asyncio.ensure_future(self._filler.woken.wait())
        try:
            await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not self.stopping:
                await ready
        finally:
            for each in (ready, stopped):
                each.cancel()
            await asyncio.gather(ready, stopped, return_exceptions=True)

    async def _begin(self) -> None:
        if self.stopping:
            return
        await self._filler.intake.begin()
        self._note_runs()
        await self._filler.join()
        self._note_started()

    def _note_runs(self) -> None:
        if not self.runs:
            self.runs = True
            self.queue.emit("consuming", True)

    def _drop(self) -> None:
        """End, and hand out nothing more."""
        self.stopping = True
        self.ahead.messages.clear()
        self.wake()

    async def _end(self) -> None:
        queue, left = self.queue, list[Message]()
        try:
            await self._filler.work.until_ended()
            if self.runs and not self._closed and not self._error:
                self.ahead.remove_all(left)
                await self._filler.intake.give_back(left)
        except (PenstockError, RedisError, OSError) as error:
            _log.warning("not given back", queue=queue.name, messages=len(left), reason=str(error))
        finally:
            self.ahead.messages.clear()
            if self in queue.consumptions:
                queue.consumptions.remove(self)
            self._filler.leave()
            if self.runs:
                self.runs = False
                queue.emit("consuming", False)
