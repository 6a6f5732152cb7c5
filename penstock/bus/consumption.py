"""Consume a queue: fetch messages ahead, hand them out one by one, give back what was not, acknowledge."""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Final, Protocol, Self

from redis.exceptions import RedisError

from penstock.base.errors import Fenced, Gone, PenstockError, WrongCall
from penstock.base.log import Log
from penstock.bus.keys import MAX_ID
from penstock.bus.message import Acknowledging, Message
from penstock.bus.mode import Mode
from penstock.bus.place import Place
from penstock.bus.scripts import ACK
from penstock.bus.taking import Claim, Intake, Reading, Taking, TakingReliably
from penstock.bus.waker import Waker, join, leave
from penstock.core.instance import Instance
from penstock.core.pace import Pace
from penstock.core.tasks import begin
from penstock.core.wire import Reply

HANDLING_SECONDS: Final = 0.05
"""Seconds for which messages are taken ahead."""
MAX_ACKED: Final = 1_000
"""Maximum number of messages that one script forgets."""
_log: Final = Log("penstock.bus")


class UnderWay:
    """What a consumption does and must not be cancelled, one at a time: a task, or a call that was sent."""

    def __init__(self) -> None:
        self._work: asyncio.Future[None] | None = None

    def note_sent(self) -> None:
        """Note that a call was sent."""
        self._work = asyncio.get_running_loop().create_future()

    def note_reply(self) -> "asyncio.Future[None] | None":
        """Note that its reply is there; end the future that is returned once that is dealt with."""
        work, self._work = self._work, None
        return work

    def go_on(self, work: "asyncio.Future[None]") -> None:
        """Note that ``work`` follows."""
        self._work = work

    async def wait_for(self, work: "asyncio.Future[None]") -> None:
        """Wait for ``work``, which goes on if this call is cancelled."""
        self._work = work
        try:
            await asyncio.shield(work)
        finally:
            if work.done() and self._work is work:
                self._work = None

    async def until_done(self) -> None:
        """Wait for what is under way, and what follows from it; raise if that raises."""
        while work := self._work:
            await self.wait_for(work)

    async def until_ended(self) -> None:
        """Wait for what goes on though its call was cancelled; its error is left to ``until_done``."""
        while self._work and not self._work.done():
            await asyncio.wait({self._work})


class Fetcher:
    """Takes the messages of one consumption of the queue ``place``; ``source`` acknowledges them."""

    def __init__(self, place: Place, mode: Mode, claim: Claim, source: Acknowledging) -> None:
        self.intake = _intake(place, mode, claim)
        self.work = UnderWay()
        self.limit = mode.limit
        """Maximum number of messages still to be taken; None without limit."""
        self.woken = asyncio.Event()
        self.pace = Pace(HANDLING_SECONDS, mode.prefetch)
        self._place, self._claim, self._source, self._removes = place, claim, source, mode.remove
        self._waker: Waker | None = None
        self._idles = False

    async def fill(self) -> None:
        """Return once there are messages, or shall be no more."""
        while not self._claim.is_over and not self._claim.messages and self.limit != 0:
            assert self._waker is not None
            if self._waker.more:
                self._waker.looks()
                await self._look(self._waker)
            else:
                await self._idle(self._waker)

    def wake(self) -> None:
        """Have it look whether there are messages, at once if it is idle, or whether it shall end."""
        waker = self._waker
        if self._idles and waker is not None and waker.more and not self._claim.is_over:
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
        place = self._place
        self._waker = Waker.of(place.instance, place.available, shared=self._removes)
        await join(self._waker, self, place.instance, place.bus)

    def leave(self, instance: Instance | None = None) -> None:
        """Hear of no new messages on ``instance``, by default the queue's, any more."""
        if self._waker is not None:
            leave(self._waker, self, instance or self._place.instance)

    async def move(self, old: Instance) -> None:
        """Go on where the queue is now, and not on ``old``."""
        if self._waker is not None:
            self.leave(old)
            await self.join()
            self.wake()

    def note_restart(self) -> None:
        """Note that the queue was created again, so that ids begin anew."""
        self._claim.restart()
        self.intake.note_restart()

    def note_doubt(self) -> None:
        """Note that ids may have begun anew."""
        self.intake.note_doubt()

    def restart(self) -> None:
        """Look again, since ids begin anew."""
        if self._waker is not None:
            self._waker.restart()

    def forget(self) -> None:
        """Take anew what was not handed out."""
        many = self._claim.forget()
        if self.limit is not None:
            self.limit += many
        self.look()

    async def _idle(self, waker: Waker) -> None:
        """Wait for a message, or ``stop``; take what has come."""
        self.woken.clear()
        self._idles = True
        waker.idle(self)
        try:
            await self.woken.wait()
        except BaseException:
            waker.end_idle(self)
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
        instance = self._place.instance
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
            self.work.go_on(self._place.bus.spawn(self._take(most, waker, sent)))
        else:
            self._claim.note_lease(begun)
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
        last = self._claim.add(lists, self._source)
        if self.limit is not None:
            self.limit -= sum(map(len, lists)) // 2
        waker.found(last, remaining)


def _intake(place: Place, mode: Mode, claim: Claim) -> Intake:
    """Return what brings messages to a consumption with the options ``mode``."""
    if not mode.remove:
        return Reading(place, mode, claim)
    return TakingReliably(place, mode, claim) if mode.reliable else Taking(place, mode, claim)


class Consumed(Protocol):
    """The queue whose messages are handed out, here or at another site."""

    name: str

    @property
    def bus(self) -> Any:
        """Return the bus that runs the task."""

    def emit(self, event: str, *values: Any) -> None:
        """Call the handlers of ``event``."""

    async def deliver(self, event: str, *values: Any) -> None:
        """Call the handlers of ``event`` one after the other."""


class Dispatcher:
    """What consumptions inherit: await one, and the handlers of ``message`` are called."""

    queue: Consumed

    def __init__(self) -> None:
        self._iterates = False
        """Whether a loop, or the handlers, have begun to take messages."""
        self._started: asyncio.Future[None] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def start(self) -> Self:
        """Have the handlers of ``message`` called from now on."""
        if self._started is None:
            if self._iterates:
                return self
            self._started = asyncio.get_running_loop().create_future()
            self.queue.bus.spawn(self._hand_out(self._started))
        await asyncio.shield(self._started)
        return self

    def _note_started(self) -> None:
        """Note that messages are being consumed: ``start`` returns."""
        if self._started and not self._started.done():
            self._started.set_result(None)

    async def _hand_out(self, started: "asyncio.Future[None]") -> None:
        """Call the handlers of the queue with each message."""
        try:
            async for message in self:
                await self.queue.deliver("message", message)
        except (PenstockError, RedisError, OSError) as error:
            if not started.done():
                started.set_exception(error)
            else:
                _log.warning("consumption ended", queue=self.queue.name, reason=str(error))
                self.queue.emit("error", error)
        finally:
            self._note_started()


class Consumption(Dispatcher):
    """What ``Queue.consume`` returns: iterate over it, or await it to have handlers called."""

    queue: Place

    def __init__(self, queue: Place, mode: Mode, acks: "Acks") -> None:
        super().__init__()
        self.queue, self.mode, self.reliable, self.exclusive = queue, mode, mode.reliable, mode.exclusive
        self.claim = Claim(queue, exclusive=mode.exclusive, fenced=self._note_fenced, lapsed=self._note_lapse)
        self.runs = False
        self._acks = acks
        self._fetcher = Fetcher(queue, mode, self.claim, self if mode.exclusive else acks)
        self._loop: weakref.ref[AsyncIterator[Message]] | None = None
        """The loop over it: asyncio closes one that was left in a task of its own, some time later."""
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    @property
    def ends(self) -> bool:
        """Return whether it was stopped, or its loop was left: the next consumption waits for its end."""
        return self.claim.is_over or (self._loop is not None and self._loop() is None)

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
        claim = self.claim
        if claim.is_over or (claim.leased_until < inf and time.monotonic() > claim.leased_until):
            return None
        try:
            message = claim.messages.popleft()
        except IndexError:
            return None
        claim.handed_id = message.id or claim.handed_id
        self.queue.consumed += 1
        return message

    def take_back(self, message: Message) -> None:
        """Hand out ``message`` again as the next one, or give it back at the end."""
        self.claim.put_back(message)
        self.queue.consumed -= 1

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """Acknowledge all messages up to ``id``. Raise ``Fenced`` once another consumer may have the queue."""
        return self._acks.add(self.claim, id)

    async def stop(self) -> None:
        """End it: what was taken and not handed out goes back, unless the queue was closed."""
        self.claim.is_over = True
        self._fetcher.wake()
        if self._ending is None:
            self._ending = begin(self._end(), _log)
        await asyncio.shield(self._ending)

    def look(self) -> None:
        """Look for messages that nobody has announced."""
        self._fetcher.look()

    def note_attached(self) -> None:
        """Begin, since the queue that it waited for is attached."""
        self._fetcher.wake()
        if self._iterates and not self.claim.is_over:
            self._note_runs()

    def note_recreated(self) -> None:
        """Look again, since the queue was created again."""
        self._fetcher.restart()

    def note_closed(self) -> None:
        """End, since somebody closed the queue."""
        self._closed = True
        self._drop()

    async def note_moved(self, old: Instance) -> None:
        """Go on where the queue is now; ids go on."""
        await self._fetcher.move(old)

    async def fetch(self) -> bool:
        """Begin if it has not; take the next messages, wait for one. Return False once there shall be no more.

        A call that is cancelled loses nothing. Raise ``Fenced`` if the lease of an exclusive consumption has ended.
        """
        fetcher = self._fetcher
        await fetcher.work.until_ended()  # a call was cancelled
        if not self._iterates:
            await self._start_iterating()
        if self.claim.messages and self.claim.is_overdue:
            self._note_lapse()
        await fetcher.fill()
        if self._error:
            raise self._error
        fetcher.pace.begin()
        return bool(self.claim.messages) and not self.claim.is_over

    async def _start_iterating(self) -> None:
        self._iterates = True
        for other in tuple(self._acks.consumptions):
            if other is not self and other.ends:
                await other.stop()
        await self._until_attached()
        await self._fetcher.work.wait_for(asyncio.ensure_future(self._begin()))

    async def _until_attached(self) -> None:
        """Wait for ``attach``, or ``stop``."""
        if self.queue.is_attached:
            return
        ready = asyncio.ensure_future(self.queue.wait_attached())
        stopped = asyncio.ensure_future(self._fetcher.woken.wait())
        try:
            await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not self.claim.is_over:
                await ready
        finally:
            for each in (ready, stopped):
                each.cancel()
            await asyncio.gather(ready, stopped, return_exceptions=True)

    async def _begin(self) -> None:
        if self.claim.is_over:
            return
        await self._fetcher.intake.begin()
        self._note_runs()
        await self._fetcher.join()
        self._note_started()

    def _note_runs(self) -> None:
        if not self.runs:
            self.runs = True
            self.queue.emit("consuming", True)

    def _note_fenced(self) -> None:
        if self.runs:
            self._error = Fenced(f"queue {self.queue.name}: the lease has ended, another consumer may have it")
            self._drop()

    def _note_lapse(self) -> None:
        """Take anew what was not handed out, since the lease had ended and others may have handled it."""
        self._fetcher.forget()

    def _drop(self) -> None:
        """End, and hand out nothing more."""
        self.claim.is_over = True
        self.claim.messages.clear()
        self._fetcher.wake()

    async def _end(self) -> None:
        queue, left = self.queue, list[Message]()
        try:
            await self._fetcher.work.until_ended()
            if self.runs and not self._closed and not self._error:
                self.claim.remove_all(left)
                await self._fetcher.intake.give_back(left)
        except (PenstockError, RedisError, OSError) as error:
            _log.warning("not given back", queue=queue.name, messages=len(left), reason=str(error))
        finally:
            self.claim.messages.clear()
            if self in self._acks.consumptions:
                self._acks.consumptions.remove(self)
            self._fetcher.leave()
            if self.runs:
                self.runs = False
                queue.emit("consuming", False)


class Acks:
    """The acknowledgements of the queue ``place``, and its ``consumptions``: those that end, then the one that runs."""

    def __init__(self, place: Place) -> None:
        self.consumptions = list[Consumption]()
        self.last_reliable: Claim | None = None
        """The claim that ids without one belong to."""
        self.task: asyncio.Task[None] | None = None
        """What sends them, if any are under way."""
        self._place = place
        self._waiting: list[tuple[Claim | None, int, asyncio.Future[None]]] = []

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """Acknowledge all up to ``id`` that the consumption that runs, or the last one, has handed out."""
        return self.add(None, id)

    def add(self, claim: Claim | None, id: Any) -> "asyncio.Future[None]":
        """The same of what was handed out with ``claim``."""
        if not isinstance(id, int) or not 0 <= id <= MAX_ID:
            raise WrongCall(f"ack({id!r}): expected the id of a message")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = self._place
        if not place.is_attached:
            future.set_exception(WrongCall(f"queue {place.name}: expected `attach` before `ack`"))
        elif not claim and self.consumptions and not self.consumptions[-1].reliable:
            future.set_result(None)
        else:
            self._waiting.append((claim or self.last_reliable, id, future))
            if self.task is None:
                self.task = place.bus.spawn(self._run())
        return future

    async def _run(self) -> None:
        while self._waiting:
            acks, self._waiting = self._waiting, []
            for claim in {each for each, _, _ in acks}:
                mine = {future: id_ for each, id_, future in acks if each is claim}
                try:
                    await self._send(claim, max(mine.values()))
                except Exception as error:  # noqa: BLE001  # each caller gets it
                    _resolve(mine, error)
                else:
                    _resolve(mine, None)
        self.task = None

    async def _send(self, claim: Claim | None, last: int) -> None:
        """Acknowledge all up to the id ``last``."""
        place = self._place
        named: dict[str, Any] = {"metadata": place.keys.metadata, "toack": place.keys.toack, "ttl": place.seconds}
        named |= {"who": claim.who if claim else place.bus.id, "most": MAX_ACKED, "last": last, "handed": 0}
        if claim and claim.exclusive:
            named |= {"lease": place.lease, "messages": place.keys.messages, "handed": claim.handed_id}
        try:
            if claim and claim.is_fenced:
                raise Fenced(f"queue {place.name}: the lease has ended, another consumer may have it")
            with suppress(Gone):
                while await place.call(ACK, **named) == MAX_ACKED:
                    pass
        except Fenced:
            if claim:
                claim.note_fenced()
            raise


def _resolve(acks: "dict[asyncio.Future[None], int]", error: Exception | None) -> None:
    for future in acks:
        if not future.done():
            if error:
                future.set_exception(error)
            else:
                future.set_result(None)


def log_failure(acknowledged: "asyncio.Future[None]") -> None:
    """Log why an ``ack`` that nobody waits for has failed."""
    if not acknowledged.cancelled() and (error := acknowledged.exception()):
        _log.warning("not acknowledged", reason=str(error))
