"""Takes jobs of some streams of one server: those that are new are read, those that are due are claimed."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from redis.exceptions import ConnectionError, RedisError, ResponseError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.core.connection import MAX_SILENCE
from penstock.core.instance import Instance
from penstock.core.link import Outage, passes
from penstock.core.raw_connection import pack
from penstock.core.runner import Runner
from penstock.core.script import Script
from penstock.core.tasks import Tasks
from penstock.core.wire import Reply, Wire
from penstock.jobs.attempt import Attempt, Unit
from penstock.jobs.consumer import Consumer
from penstock.jobs.handling import Durations
from penstock.jobs.in_hand import InHand
from penstock.jobs.intake import NEW, Entry, Intake
from penstock.jobs.permits import Permit, Permits
from penstock.jobs.recording import Recording
from penstock.jobs.scheduler import LEAST_SECONDS, MAX_CLAIMED, Due, Scheduler
from penstock.jobs.servers import Servers
from penstock.jobs.settlement import Settlement

if TYPE_CHECKING:
    from penstock.jobs.ledger import Ledger

NAME: Final = "penstock-jobs-wait"
BLOCK_SECONDS: Final = 5.0
"""Longest wait of one read."""
MAX_READ: Final = 500
LOOK_SECONDS: Final = 1.0
"""How long to wait for a permit, or for a key that is wrong, before one looks again."""
RENEW_SHARE: Final = 3
"""How often an attempt is renewed in the time after which others claim it."""
T = TypeVar("T")
_leave: Final = Script.read(Path(__file__).parent / "lua" / "leave.lua")
_log: Final = Log("penstock.jobs")


class StreamSource:
    """Some streams of one server: one that has a limit, or batches, is alone. ``resumed``: outcomes are taken again.

    What it takes is more than one at a time, and handed out by ``runner``, so nothing is noted in ``in_hand``.
    """

    noun: ClassVar[str] = "job"
    alone: ClassVar[bool] = False
    judges, due_at, handled, failures = False, inf, 0, 0

    def __init__(
        self, servers: Servers, node: Instance, streams: Sequence[str], consumer: Consumer, runner: Runner[Unit],
        durations: Durations, ledger: "Ledger | None", resumed: Callable[[], None],
    ) -> None:  # fmt: skip
        keys, options, handler = servers.keys, consumer.options, consumer.options.handlers[streams[0]]
        self.name, self.node = f"{node.address} {' '.join(streams)}", node
        self.in_hand: Unit | None = None
        self.renew_every = options.claim_after / RENEW_SHARE
        self._is_full = False
        """Whether it reads nothing, since no other job may begin."""
        self._streams, self._consumer, self._keys, self._runner = streams, consumer, keys, runner
        self._group = keys.group(consumer.group)
        self._resumed, self._tasks, self._news = resumed, Tasks(_log), asyncio.Event()
        self.scheduler = Scheduler(servers, node, consumer, self.note)
        self.settlement = Settlement(
            servers, node, consumer.group, consumer.id, self.scheduler.within, self._resume, self._has_again, ledger
        )
        limit, lease = handler.limit, options.claim_after
        self._permits = Permits(node, keys, streams[0], consumer.group, consumer.id, limit, lease) if limit else None
        self._durations, self._reads_ahead = durations, limit is None and not handler.size
        self._size = max(handler.size, 1)
        """Jobs of a unit."""
        self.held = InHand(node, keys, consumer, runner, self.settlement, self._permits, ledger, self._tasks)
        self._intake = Intake(servers, consumer, self.held, self.scheduler, self._permits, ledger)
        self._recording = Recording(servers, node, consumer.id, self.scheduler.seconds)
        self.outage = Outage(_log, "cannot read jobs", "jobs are read again", server=node.address, group=consumer.group)

        self._wire = Wire(node.url, NAME, lambda _: None)
        self._order = [encoded(keys.stream(name)) for name in streams]
        self._names = dict(zip(self._order, streams, strict=True))
        self._reading: Reply | None = None
        """A read that waits."""
        self._lent: list[Permit] = []
        """What it holds so that others do not read what they could not begin."""
        self._wrong = dict[bytes, float]()
        """Streams whose keys have another type, by when (monotonic) they are looked at again."""
        self._to_look = deque[str]()
        """Streams of which is to be asked what is due."""
        self._found: tuple[str, Due] | None = None
        """What was due of a stream that is to be cleaned up."""
        self._looks_when_free = False
        """Whether something waits in vain to be tried again while there is no room."""
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._listeners = [(encoded(keys.control(name)), partial(self._heard, name)) for name in streams]
        for channel, listener in self._listeners:
            node.subscriber.add(channel, listener)

    @property
    def facts(self) -> Mapping[str, str]:
        """Return what names it in a log line."""
        return {"group": self._consumer.group, "server": self.node.address}

    def judge(self, _: Unit) -> bool:
        """Return False: what cannot begin is never taken."""
        return False

    # Taking

    async def take(self, _: int) -> list[Unit]:
        """Ask what is due, if it is time, and claim it, as much as may begin."""
        self._news.clear()  # first: what changes from now on must end the wait that follows
        while not self._is_over:
            if self._found:
                (stream, due), self._found = self._found, None
                await self._try(stream, self._clean_up(stream, due))
            elif self._to_look:
                stream = self._to_look.popleft()
                if units := await self._try(stream, self._look(stream)):
                    return units
            elif self.scheduler.is_due or (self._looks_when_free and self._runner.free):
                self._looks_when_free = False
                self.scheduler.begin()
                self._wire.cut_if_silent(BLOCK_SECONDS + MAX_SILENCE)
                self._to_look += self._streams
            else:
                break
        return []

    async def _try(self, stream: str, call: Awaitable[T]) -> T | None:
        """Return what ``call`` does; None if it fails, which must keep nobody from the other streams."""
        try:
            return await call
        except (RedisError, OSError, PenstockError) as error:
            if not passes(error) and "NOGROUP" not in str(error):
                _log.warning("cannot claim jobs", stream=stream, server=self.node.address, reason=str(error))
            return None

    async def _look(self, stream: str) -> list[Unit]:
        """Claim what is due of one stream."""
        is_held = self._runner.is_paused or self.settlement.is_held_up
        most = 0 if is_held else min(self._runner.free, MAX_CLAIMED)
        due = await self.scheduler.due(stream, most, is_limited=self._permits is not None)
        self._looks_when_free = self._looks_when_free or due.waits_for_room
        self._found, paused = (stream, due), self._intake.paused
        if due.is_paused != (stream in paused):
            (paused.add if due.is_paused else paused.discard)(stream)
            self._wake()
        return await self._intake.accept(stream, due.claimed) if due.claimed else []

    async def _clean_up(self, stream: str, due: Due) -> None:
        """Do what else is due."""
        await self.scheduler.repeat(stream, due.repeated)
        if due.missing:
            what = {"stream": stream, "many": len(due.missing)}
            _log.warning("jobs were removed from the stream before they were done", **what)
            await self.held.gone(stream, due.missing)
        if self._permits:
            await self._permits.take([], parks=True)  # frees what dead consumers had
        self.settlement.forwarding.forward(stream)
        if self._consumer.options.trim:
            await self.settlement.trim(stream)
        await self._recording.look(stream)

    # Reading

    def begin(self) -> None:
        """Note nothing: how long jobs take is noted as they end."""

    def size(self) -> int:
        """Return how many more units may be read: as many as may begin, and short ones as many again, ahead."""
        runner = self._runner
        if runner.holds_back or runner.is_paused:
            return 0
        more = runner.concurrency if self._reads_ahead and self._durations.are_short else 0
        return max(0, runner.concurrency + more - runner.busy)

    async def wait(self, _: int) -> list[Unit] | None:
        """Wait until jobs have come; return None as soon as anything else has changed."""
        if self._reading is None and not self._is_over and self._may_read():
            if not self._wire.is_open:
                await self._wire.open()
                await self._create_groups()
                self.scheduler.within(0)  # before there were groups, nothing was due
            if units := await self._read():
                return units
        if not (self._reading and self._reading.is_done):  # while `take` asked what is due
            await self._news.wait()
        return await self._ended_read() if self._reading and self._reading.is_done else None

    async def _ended_read(self) -> list[Unit] | None:
        """Return what a read that has ended has found."""
        reply, self._reading = self._reading, None
        await self._end_loan()
        found = reply and reply.value()
        self.outage.over()
        return await self._accept(found) if found else None

    async def end_read(self) -> None:
        """Return once no read waits any more, which would get what others are there for."""
        self._wake(surely=True)
        while self._reading and not self._reading.is_done:
            await asyncio.sleep(LEAST_SECONDS)

    async def drain(self) -> list[Unit]:
        """Return what a read that is being interrupted has found."""
        with suppress(RedisError, OSError, PenstockError):
            if self._reading:
                await self._reading
                return await self._ended_read() or []
        return []

    def _may_read(self) -> bool:
        """Return whether a job that is read now could begin, or may be read ahead."""
        if self.settlement.is_held_up:  # what began now would end and wait, too
            return False
        self._is_full = not self.size()
        return not self._is_full

    @property
    def needs_room(self) -> bool:
        """Return whether it waits until another job may begin."""
        return self._is_full or self._looks_when_free

    async def _read(self) -> list[Unit]:
        """Begin a read that waits; return what may begin if jobs are there already."""
        most = min(self.size() * self._size, MAX_READ)
        if not most:  # another server's jobs came while this one was connected: COUNT 0 would read all
            self._is_full = True
            return []
        if self._permits is None or self._permits.limit.by_key:
            self._reading = self._send(most, BLOCK_SECONDS)
            return []
        permits, after = await self._permits.take_some(most)
        try:
            if not permits:
                self._wake_in(min(after or LOOK_SECONDS, LOOK_SECONDS))
                return []
            reply = self._send(len(permits), 0)
            found = reply and await reply
            if found:
                return await self._accept(found, permits)
            self._lent, permits = permits[:1], permits[1:]
            self._reading = self._send(1, BLOCK_SECONDS)
            return []
        finally:
            await self._permits.give_back(permits, unused=True)

    def _send(self, most: int, seconds: float) -> Reply | None:
        """Ask for new jobs of the streams; return None if there is none that may be read."""
        self._order = streams = self._order[1:] + self._order[:1]
        paused = self._intake.paused
        if paused or self._wrong:
            now = monotonic()
            streams = [key for key in streams if self._names[key] not in paused and self._wrong.get(key, 0.0) <= now]
        if self._wrong:
            seconds = min(seconds, LOOK_SECONDS)
        if not streams or self._is_over:
            self._wake_in(LOOK_SECONDS if self._wrong else BLOCK_SECONDS)
            return None
        if not self._wire.is_open:
            raise ConnectionError("not connected")
        block = ("BLOCK", int(seconds * 1000)) if seconds else ()
        reply = Reply(lambda _: self._news.set())
        words = (
            "XREADGROUP", "GROUP", self._group, self._consumer.id, "COUNT", most, *block,
            "STREAMS", *streams, *[">"] * len(streams),
        )  # fmt: skip
        self._wire.send(pack([words]), reply)
        return reply

    async def _accept(self, found: Sequence[Any], permits: list[Permit] | None = None) -> list[Unit]:
        """Return what may begin of streams with their entries; each takes one of ``permits`` if there are any."""
        units = list[Unit]()
        for key, entries in found:
            new: list[Entry] = [(entry, 1, fields, NEW) for entry, fields in entries]
            units += await self._intake.accept(self._names[key], new, permits)
        return units

    async def _end_loan(self) -> None:
        if self._permits and self._lent:
            permits, self._lent = self._lent, []
            with suppress(RedisError, OSError, PenstockError):  # they end by themselves; what was read must not wait
                await self._permits.give_back(permits, unused=True)

    async def _create_groups(self, start: str | None = None) -> None:
        """Create the group of each stream that has none, at ``start`` or where its processor says."""
        for key, name in self._names.items():
            where = start or self._consumer.options.handlers[name].start
            try:
                await self._wire.execute_command("XGROUP", "CREATE", key, self._group, where, "MKSTREAM")
                self._wrong.pop(key, None)
            except ResponseError as error:
                if str(error).startswith("WRONGTYPE"):
                    self._note_wrong(key, name)
                elif not str(error).startswith("BUSYGROUP"):
                    raise

    def _note_wrong(self, key: bytes, name: str) -> None:
        """Leave a stream out for a while, so that it does not keep the others from being read."""
        if key not in self._wrong:
            _log.warning("the key of a stream has another type: it is left out until that is mended", stream=name)
        self._wrong[key] = monotonic() + LOOK_SECONDS

    async def mend(self, error: Exception, _: bool) -> None:
        """Make groups again that somebody has deleted, or whose streams had another type."""
        if "WRONGTYPE" in str(error) or "NOGROUP" in str(error):
            self._intake.is_anew = True
            with suppress(RedisError, OSError):
                await self._create_groups("0")
        self._news.clear()  # to wait in any case

    # What changes meanwhile

    def note(self) -> None:
        """Note that something has changed: a wait ends."""
        self._news.set()

    @property
    def news(self) -> asyncio.Event:
        """Return what is set when something has changed."""
        return self._news

    def _wake_in(self, seconds: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._news.set)

    def _wake(self, *, surely: bool = False) -> None:
        """End a read that waits, since it reads what it must not, or not what it may.

        One that the server has not got yet may go on, unless it has to end ``surely``.
        """
        self._news.set()
        if self._wire.is_open and self._wire.id is not None:
            self._tasks.begin(self._unblock(self._wire.id, surely))

    async def _unblock(self, id: int, surely: bool) -> None:
        try:
            async with asyncio.timeout(MAX_SILENCE):
                while self._wire.is_open and self._wire.waiting:
                    await self.node.command("CLIENT", b"UNBLOCK", id)
                    if not surely:
                        return
                    await asyncio.sleep(LEAST_SECONDS)
        except (RedisError, OSError, PenstockError, TimeoutError):
            self._wire.end(ConnectionError("the consumer stops"), told=False)

    def _has_again(self, attempt: Attempt) -> bool:
        return self.held.has_again(attempt)

    def _resume(self) -> None:
        """Go on after outcomes had to wait."""
        self._news.set()
        self._resumed()

    def _heard(self, stream: str, message: bytes | None) -> None:
        """Act on what somebody has changed; on None look at everything."""
        verb, _, word = decoded(message or b"due 0").partition(" ")
        if verb == "due":
            with suppress(ValueError):
                self.scheduler.within(float(word))
                self._news.set()
        elif verb == "cancel":
            self.held.cancel(stream, encoded(word))
        elif verb == "pause" and stream not in self._intake.paused:
            self._intake.paused.add(stream)
            self._wake()
        elif verb == "read":  # what was handed back is new once more
            self._wake()
        elif verb == "play":
            self.scheduler.within(0)

    # Life

    async def interrupt(self) -> None:
        """Read no more; what a read that waits has got by now is still taken."""
        self._is_over = True
        self._wake(surely=True)

    async def renew(self) -> None:
        """Renew what is in hand, and give up what others have."""
        await self.held.renew()

    async def renew_elsewhere(self) -> None:
        """Renew in another event loop what is in hand."""
        await self.held.renew_elsewhere()

    async def give_back_ahead(self) -> None:
        """Do nothing: who hands out knows what has not begun."""

    async def give_back(self) -> None:
        """Settle all, and leave the groups."""
        for channel, listener in self._listeners:
            self.node.subscriber.remove(channel, listener)
        await self.settlement.finish()
        await self._end_loan()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=MAX_SILENCE)
        await self._recording.close()
        for name in self._streams:
            with suppress(RedisError, OSError, PenstockError):
                if not self.node.is_away:
                    words = {"group": self._group, "consumer": self._consumer.id}
                    await self.node.run(_leave, stream=self._keys.stream(name), **words)

    async def close(self) -> None:
        """Disconnect."""
        self.scheduler.close()
        if self._timer:
            self._timer.cancel()
        await self.settlement.close()
        await self._tasks.cancel()
        await self._wire.close()
