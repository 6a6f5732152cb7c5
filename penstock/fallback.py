"""Push to a server that may be away: then messages wait on disk, and go on in order, once, when it is back.

The way to each list or queue is a ``Hop``, with a ledger on the server. So it does not matter whether a push without a
reply has arrived: it is stored with its number, and the server takes it once. While nothing waits on disk, the disk is
not used. ``penstock.lists.fallback`` and ``penstock.bus.fallback`` say which hop.
"""

import asyncio
import builtins
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from redis.exceptions import ConnectionError, RedisError

from penstock.base.errors import Fenced, Full, PenstockError, Refused, Unavailable, Unconfirmed, WrongCall
from penstock.base.log import Log
from penstock.core.batches import MAX_BYTES, MAX_MESSAGES
from penstock.core.link import OTHER_SERVER, Outage, again, passes
from penstock.core.once import SMALLEST_LIMIT, Hop
from penstock.core.patience import HURRY_SECONDS
from penstock.core.raw_connection import Packed
from penstock.core.tasks import begin

if TYPE_CHECKING:
    from penstock.outbox import Outbox, Spool, Spools

CLOSE_SECONDS: Final = 0.005
"""Between two looks whether all has been sent, at the end."""
Ids = Sequence[int]
"""Of the messages of a push, by a server that gives some; empty if they wait on disk."""


class _Push(NamedTuple):
    messages: list[bytes]
    done: "asyncio.Future[Ids]"


class Destination(ABC):
    """One list or queue: one batch is under way at a time, and what comes meanwhile is the next."""

    def __init__(self, name: str, spool: "Spool", hop: Hop, log: Log, kind: str) -> None:
        """``kind`` says in the log, and in errors, what ``name`` is the name of."""
        self.name, self.spool, self._hop = name, spool, hop
        self._log, self._kind = log, kind
        self._token = 0
        self._is_met = False
        self._last: int | None = None
        """The number in the ledger of the last message that is there; None if it is not known."""
        self._queue = deque[_Push]()
        self._sent = 0
        """How many pushes of the queue may be under way."""
        self._taken = SMALLEST_LIMIT
        """The size of the largest message that the server takes, as far as is known."""
        self._news = asyncio.Event()
        self.outage = Outage(log, "pushes wait on disk", "pushes reach the server again", **{kind: name})
        self.outage.over(unsaid=0)  # what a lost connection has had stored is said
        self._storing: asyncio.Task[None] | None = None
        self._task = begin(self._run(), log)
        self._task.add_done_callback(self._ended)
        spool.changed = self._news.set

    @abstractmethod
    async def too_large(self, size: int) -> str | None:
        """Return that a message of ``size`` bytes is larger than the server takes; None if it is not, or unknown."""

    async def lost(self, error: Exception) -> None:  # noqa: B027
        """Note that a call has failed."""

    async def leave(self) -> None:  # noqa: B027
        """Disconnect for good."""

    async def wait(self, error: Exception) -> None:  # noqa: B027
        """Wait for more than time before the next attempt, if that could not succeed before."""

    async def before_storing(self) -> None:  # noqa: B027
        """Store what the next program needs. Raise ``DiskFull``."""

    def add(self, messages: list[bytes]) -> "asyncio.Future[Ids]":
        """Push ``messages`` behind all others; the future ends once the server has them, or the disk.

        It raises ``DiskFull``, ``Full``, ``WrongCall`` if one is too large, and what waiting cannot mend.
        """
        push = _Push(messages, asyncio.get_running_loop().create_future())
        if self._task.done():
            _finish(push, self._why_ended())
        elif self.spool.count and not self._queue:  # behind what waits there
            try:
                self.spool.keep(messages).add_done_callback(partial(_stored, push))
            except PenstockError as error:
                _finish(push, error)
        else:
            self._queue.append(push)
            self._news.set()
        return push.done

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits or is under way."""
        return not self._queue and not self.spool.count

    def end(self) -> None:
        """Send nothing any more, once it ``is_idle``."""
        self._task.cancel()

    @property
    def is_sending(self) -> bool:
        """Return whether what waits on disk is being sent."""
        return bool(self.spool.count) and self.outage.reason is None and not self._task.done()

    async def close(self) -> None:
        """Send nothing any more, and store what is under way."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.leave()
        if self._storing is not None:
            await self._storing
        await self._store_queue("the program ends")

    def _why_ended(self) -> Exception:
        error = None if self._task.cancelled() else self._task.exception()
        return error if isinstance(error, Exception) else Unavailable(f"{self._kind} {self.name}: closed already")

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Let nobody wait for a task that a bug has ended."""
        while self._queue and not task.cancelled():
            _finish(self._queue.popleft(), self._why_ended())

    async def _run(self) -> None:
        await again(self._send_on, self.outage, lasts=_is_bug, mend=self._trouble, ends_outage=False)

    async def _send_on(self) -> None:
        while True:
            if not self._queue and not self.spool.count:
                self._news.clear()
                await self._news.wait()
            await self._step()

    async def _step(self) -> None:
        """Send one batch: of what waits on disk, or else of the queue."""
        if not self._is_met:
            await self._meet()
        if self.spool.count:
            self._news.clear()
            messages = await self.spool.oldest(MAX_MESSAGES, MAX_BYTES)
            if not messages:  # they are being stored
                await self._news.wait()
                return
            place, reason = await self._first_too_large(messages)
            if reason and not place:
                await self.spool.set_aside(reason)
                self._log.error("a message is a dead letter", **{self._kind: self.name}, reason=reason)
                return
            messages = messages[:place]
            many, _ = await self._send(messages)
            self.spool.delivered(many)
            if many < len(messages):
                raise Refused(str(self._full([])))
            return
        if not (pushes := self._next()):
            return
        for push in pushes:
            _, reason = await self._first_too_large(push.messages)
            if reason:
                _finish(push, WrongCall(reason))
                return
        self._sent = len(pushes)
        many, ids = await self._send([message for push in pushes for message in push.messages])
        self._sent = end = 0
        for push in pushes:
            self._queue.popleft()
            begin, end = end, end + len(push.messages)
            _finish(push, self._full(ids[begin:many]) if end > many else None, ids[begin:end])

    def _next(self) -> list[_Push]:
        """Return the pushes that go together next, which stay in the queue; drop those that have ended."""
        pushes, count, size = list[_Push](), 0, 0
        while self._queue:
            push = self._queue.popleft()
            if push.done.done():
                continue
            count, size = count + len(push.messages), size + sum(map(len, push.messages))
            if pushes and (count > MAX_MESSAGES or size > MAX_BYTES):
                self._queue.appendleft(push)
                break
            pushes.append(push)
        self._queue.extendleft(reversed(pushes))
        return pushes

    async def _first_too_large(self, messages: list[bytes]) -> tuple[int, str]:
        """Return the place of the first message that the server never takes, and why; else the end."""
        for place, message in enumerate(messages):
            if len(message) > self._taken:
                if reason := await self.too_large(len(message)):
                    return place, reason
                self._taken = len(message)
        return len(messages), ""

    async def _meet(self) -> None:
        """Connect, refuse what former connections may still send, and learn what has arrived."""
        past = self._token
        while self._token <= past:
            self._token = past + 1
            past, last, *_ = await self._hop.meet(self._token)
        await self.spool.agree(last)
        self._is_met, self._last = True, last

    async def _send(self, messages: list[bytes]) -> tuple[int, Ids]:
        """Push ``messages`` behind the last one; return how many there was room for, and their ids.

        Raise ``ConnectionError`` if the server has lost some before them.
        """
        assert self._last is not None
        await self._hop.send(self._last + 1, Packed.of(messages))
        last = await self._hop.arrived()
        many = last - self._last
        if not 0 <= many <= len(messages):
            raise ConnectionError("the server has lost messages that it had confirmed")
        self._last = last
        if many == len(messages) and self.outage.reason is not None:
            self.spool.trouble.note("")
            self.outage.over(unsaid=0)
        return many, self._hop.ids

    def _full(self, ids: Ids) -> Full:
        return Full(f"{self._kind} {self.name} is full: it holds as many messages as its maxsize", [*ids])

    async def _trouble(self, error: Exception, _: bool) -> None:
        """Store what could not be sent; what waiting cannot mend goes to those who push."""
        self._is_met, self._taken = False, SMALLEST_LIMIT
        await self.lost(error)
        self.spool.trouble.note(str(error).removeprefix(OTHER_SERVER))
        is_fenced = isinstance(error, Fenced)
        if is_fenced:  # the server has lost the ledger, or a copy of the outbox has sent: it refused what was sent now
            self._last, self._sent = None, 0
        if passes(error) or is_fenced:
            self._storing = begin(self._store_queue(str(error)), self._log)
            await asyncio.shield(self._storing)
        else:
            self._sent = 0
            while self._queue:
                _finish(self._queue.popleft(), error)
        await self.wait(error)

    async def _store_queue(self, why: str) -> None:
        """Store all pushes that have no reply, those first that may have arrived. Others queue up behind them."""
        while self._queue:
            sent, self._sent, found = self._sent, 0, [*self._queue]
            pushes = found[:sent] + [push for push in found[sent:] if not push.done.done()]
            messages = [message for push in pushes for message in push.messages]
            problem: PenstockError | None = None
            try:
                await self.before_storing()
                if self.spool.count:
                    await self.spool.keep(messages)
                elif messages:
                    await self.spool.begin(messages, self._last)
            except PenstockError as error:
                problem = error
                if sent:
                    self._last = None  # nobody knows whether their numbers are used
            for _ in found:
                self._queue.popleft()
            for place, push in enumerate(pushes):
                if problem and place < sent:
                    many = len(push.messages)
                    lost = Unconfirmed(f"{many:,} messages may have been pushed, or not: {why}; {problem}")
                    _finish(push, lost)
                else:
                    _finish(push, problem)


W = TypeVar("W", bound=Destination)


class Fallback(ABC, Generic[W]):
    """All lists or queues of a server or bus, and what waits for them on disk."""

    def __init__(self, spools: "Spools") -> None:
        self._spools = spools
        self._destinations = {each: self._new(each) for each in self._spools.names()}

    @abstractmethod
    def _new(self, name: bytes) -> W:
        """Return what pushes to what has this name."""

    def _destination(self, name: bytes) -> W:
        destination = self._destinations.get(name)
        if destination is None:
            destination = self._destinations[name] = self._new(name)
        return destination

    @property
    def waiting(self) -> int:
        """Return how many messages wait on disk."""
        return sum(destination.spool.count for destination in self._destinations.values())

    async def close(self) -> None:
        """Send what waits if the server is there, for some seconds; the next program with the outbox sends the rest."""
        sending = [*self._destinations.values()]
        with suppress(builtins.TimeoutError):
            async with asyncio.timeout(HURRY_SECONDS):
                while sending := [destination for destination in sending if destination.is_sending]:
                    await asyncio.sleep(CLOSE_SECONDS)
        await asyncio.gather(*(destination.close() for destination in self._destinations.values()))
        self._spools.release()


async def opened(outbox: "Outbox | str | Path", until: AsyncExitStack) -> "Outbox":
    """Return ``outbox``; open the one with this data directory ``until`` the stack is closed."""
    if not isinstance(outbox, str | Path):
        return outbox
    from penstock.outbox import Outbox  # only here: it needs the extra `outbox`

    return await until.enter_async_context(Outbox(datadir=outbox))


def _is_bug(error: Exception) -> bool:
    return not isinstance(error, RedisError | OSError | PenstockError)


def _stored(push: _Push, future: "asyncio.Future[None]") -> None:
    error = None if future.cancelled() else future.exception()
    if isinstance(error, Exception) or error is None:
        _finish(push, error)


def _finish(push: _Push, error: Exception | None = None, ids: Ids = ()) -> None:
    if push.done.done():  # cancelled
        return
    if error is None:
        push.done.set_result(ids)
    else:
        push.done.set_exception(error)


__all__ = ["Destination", "Fallback", "Ids", "opened"]
