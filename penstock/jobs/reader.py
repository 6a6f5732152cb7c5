"""Reads jobs of some streams of one server, and keeps those that a worker has in hand from being claimed."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, RedisError, ResponseError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.core.connection import MAX_SILENCE
from penstock.core.instance import Instance
from penstock.core.link import BACKOFF, passes
from penstock.core.script import Script
from penstock.core.tasks import Tasks
from penstock.core.wire import Wire
from penstock.jobs.attempt import Attempt
from penstock.jobs.permits import Permit, Permits
from penstock.jobs.settler import Settler
from penstock.jobs.tender import LEAST_SECONDS, LOOK_SECONDS, LOST, MAX_READ, Tender

if TYPE_CHECKING:
    from penstock.jobs.consumer import Handler
    from penstock.jobs.ledger import Ledger
    from penstock.jobs.worker import Worker

NAME: Final = "penstock-jobs-wait"
BLOCK_SECONDS: Final = 5.0
"""Longest wait of one read."""
MAX_VALUE_BYTES: Final = 1 << 23
"""Bytes of values after which a read ends: meanwhile the server answers nobody."""
NEW, SUSPECT, DEAD = b"new", b"suspect", b"dead"
"""How a job came: see ``lua/tend.lua``."""
AWAY_SECONDS: Final = 5.0
"""How long jobs wait whose values cannot be read until they are looked at again."""
MAX_RENEWED: Final = 1_000
_lua: Final = Path(__file__).parent / "lua"
_renew, _leave, _values = (Script.read(_lua / f"{verb}.lua") for verb in ("renew", "leave", "values"))
_log: Final = Log("penstock.jobs")


class Reader:
    """Some streams of one server: one that has a limit is alone."""

    def __init__(self, worker: "Worker", node: Instance, streams: Sequence[str]) -> None:
        self.node, self.streams = node, streams
        self._worker, self._consumer, self._keys = worker, worker.consumer, worker.servers.keys
        self._group = self._keys.group(worker.consumer.group)
        self._order = [encoded(self._keys.stream(name)) for name in streams]
        self._names = dict(zip(self._order, streams, strict=True))
        self._wire = Wire(node.url, NAME, lambda _: None)
        self.tender = Tender(self, worker)
        self.settler = Settler(
            worker.servers,
            node,
            self._consumer.group,
            self._consumer.id,
            self.tender.within,
            self._resume,
            worker.ledger,
        )
        limit = worker.options.handlers[streams[0]].limit
        lease = worker.options.claim_after
        self.size = worker.options.handlers[streams[0]].size
        self.permits = (
            Permits(node, self._keys, streams[0], self._consumer.group, self._consumer.id, limit, lease)
            if limit
            else None
        )
        self._reads_ahead = limit is None and not self.size
        self._released: list[Permit] = []
        self.paused = set[str]()
        """Streams of which no job begins."""
        self.without_values = set[Instance]()
        """Servers that have kept jobs from reading or writing their values."""
        self._wrong = dict[bytes, float]()
        """Streams whose keys have another type, by when (monotonic) they are looked at again."""
        self._news = asyncio.Event()
        self._failures = 0
        self._tasks = Tasks(_log)
        self._listeners = [(encoded(self._keys.control(name)), partial(self._heard, name)) for name in streams]

    # Reading

    async def run(self) -> None:
        """Read until all shall stop."""
        for channel, listener in self._listeners:
            self.node.subscriber.add(channel, listener)
        tasks = [asyncio.create_task(self._read_on()), asyncio.create_task(self.tender.run())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._worker.stopping:  # else it has ended by a bug
                self.tender.within(0)
                await asyncio.wait(tasks, timeout=0 if self.node.is_away else MAX_SILENCE)  # replies may have jobs
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _read_on(self) -> None:
        while not self._worker.stopping:
            self._news.clear()  # first: what changes while it asks must end the wait that follows
            if self.settler.is_held_up:  # what began now would end and wait, too
                await self._wait_for_news(BLOCK_SECONDS)
                continue
            if self._consumer.is_paused or not self._worker.room(ahead=self._reads_ahead):
                await self._worker.has_room(ahead=self._reads_ahead)
                continue
            try:
                await self._read()
                self._failures = 0
                await asyncio.sleep(0)  # jobs that end at once are settled before more are read
            except (RedisError, OSError, PenstockError) as error:
                await self._trouble(error)

    async def _read(self) -> None:
        if not self._wire.is_open:
            await self._wire.open()
            await self._create_groups()
            self.tender.within(0)  # it may have looked before there was a group
        many = min(self._worker.room(ahead=self._reads_ahead) * max(self.size, 1), MAX_READ)
        if not many:  # another server's jobs came while this one was connected: COUNT 0 would read all
            return
        if self.permits is None or self.permits.limit.by_key:
            await self._begin_all(await self._ask(many, BLOCK_SECONDS))
            return
        permits, after = await self.permits.take_some(many)
        try:
            if not permits:
                await self._wait_for_news(min(after or LOOK_SECONDS, LOOK_SECONDS))
                return
            found = await self._ask(len(permits), 0)
            if not found:
                permits, spare = permits[:1], permits[1:]
                await self.permits.give_back(spare, unused=True)
                found = await self._ask(1, BLOCK_SECONDS)
                await self.permits.give_back(permits, unused=True)
                permits = []  # it may be old: a job takes one when it begins
                await self._begin_all(found)
            else:
                await self._begin_all(found, permits)
        finally:
            await self.permits.give_back(permits, unused=True)

    async def _ask(self, many: int, seconds: float) -> list[Any]:
        """Return what a read replies: streams with their entries."""
        self._order = streams = self._order[1:] + self._order[:1]
        if self.paused or self._wrong:
            now = time.monotonic()
            streams = [
                key for key in streams if self._names[key] not in self.paused and self._wrong.get(key, 0.0) <= now
            ]
        if not streams:
            await self._wait_for_news(LOOK_SECONDS if self._wrong else BLOCK_SECONDS)
            return []
        if self._worker.stopping:  # since it has connected, or has its permits
            return []
        if self._wrong:
            seconds = min(seconds, LOOK_SECONDS)
        block = ("BLOCK", int(seconds * 1000)) if seconds else ()
        found: list[Any] | None = await self._wire.execute_command(
            "XREADGROUP", "GROUP", self._group, self._consumer.id, "COUNT", many, *block,
            "STREAMS", *streams, *[">"] * len(streams),
        )  # fmt: skip
        return found or []

    async def _begin_all(self, found: Sequence[Any], permits: list[Permit] | None = None) -> None:
        """Begin attempts; each takes one of ``permits`` if there are any."""
        for key, entries in found:
            await self.begin(self._names[key], [(entry, 1, fields, NEW) for entry, fields in entries], permits)

    async def begin(
        self,
        stream: str,
        found: Sequence[tuple[bytes, int, Sequence[bytes], bytes]],
        permits: list[Permit] | None = None,
    ) -> None:
        """Begin attempts: entry, number and fields of each, and how it came: see ``lua/tend.lua``."""
        servers, group = self._worker.servers, self._consumer.group
        attempts, suspects, dead, others = list[Attempt](), set[Attempt](), list[Attempt](), list[Attempt]()
        for entry, number, fields, how in found:
            attempt = Attempt(servers, stream, group, entry, number, fields, is_new=how == NEW)
            if attempt._only_for != group:
                others.append(attempt)
            elif how == NEW or not self._worker.goes_on(self, attempt):
                (dead if how == DEAD else attempts).append(attempt)
                if how == SUSPECT:
                    suspects.add(attempt)
        handler = self._worker.options.handlers[stream]
        if others:
            entries = [each.entry for each in others]  # sent again for another group
            await self.node.command("XACK", encoded(self._keys.stream(stream)), encoded(self._group), *entries)
        for attempt in dead:
            self.settler.bury(attempt, LOST)
        if stream in self.paused:
            for attempt in attempts:
                self.settler.settle(attempt, "back")
            return
        if self.permits and permits is None:
            attempts = await self._permitted(attempts)
        if handler.values and not all(each.values.keys() >= handler.wanted for each in attempts):
            attempts = await self._with_values(attempts, handler)
        if permits:
            for attempt in attempts:
                attempt._permit = permits.pop()
        most = self._worker.options.attempts
        if over := [each for each in attempts if each.number > most]:
            attempts = [each for each in attempts if each.number <= most]
            for attempt in over:
                self.settler.bury(attempt, LOST)
                self.release(attempt)
        if self._worker.ledger:
            attempts = await self._noted(self._worker.ledger, stream, attempts)
        self._worker.begin(self, [each for each in attempts if each not in suspects])
        if suspects:
            self._worker.begin(self, [each for each in attempts if each in suspects], suspects=True)

    async def _noted(self, ledger: "Ledger", stream: str, attempts: list[Attempt]) -> list[Attempt]:
        """Note that attempts begin; return those that others do not have by now."""
        of = {"jobs": self._keys.stream(stream), "group": self._group, "consumer": self._consumer.id, "stream": stream}
        lost = await ledger.begin(self.node, attempts, **of)
        for attempt in attempts:
            if attempt.entry in lost:
                self._worker.lost(self, attempt)
                self.release(attempt)
        return [each for each in attempts if each.entry not in lost]

    async def _permitted(self, attempts: list[Attempt]) -> list[Attempt]:
        """Return those that have a permit; the others are claimed once there may be one."""
        assert self.permits
        by_key = self.permits.limit.by_key
        wanted = [(_without_spaces(each.key or "") if by_key else "", decoded(each.entry)) for each in attempts]
        granted, after = await self.permits.take(wanted, parks=True)
        if after is not None:
            self.tender.within(after)
        for attempt, permit in zip(attempts, wanted, strict=True):
            attempt._permit = permit
        return [attempt for attempt, is_ours in zip(attempts, granted, strict=True) if is_ours]

    async def _with_values(self, attempts: Sequence[Attempt], handler: "Handler") -> list[Attempt]:
        """Read values of many jobs at once, of each server; return the jobs without those whose server is away.

        These are handed back for a while, and lose no attempt.
        """
        by_node = dict[Instance, list[Attempt]]()
        for attempt in attempts:
            if not attempt.values.keys() >= handler.wanted:
                by_node.setdefault(attempt._node, []).append(attempt)
        payload = self._keys.payload
        for node, some in by_node.items():
            names = [payload(each.id, key) for each in some for key in handler.values]
            try:
                if node.is_away and node.is_up is not None:
                    raise node.reason
                found = await self._values(node, [*dict.fromkeys(names)])
            except (RedisError, OSError, PenstockError) as error:
                for attempt in some:
                    self.release(attempt)
                    self.hand_back_for_a_while(attempt, str(error))
                continue
            self.without_values.discard(node)
            read = map(found.__getitem__, names)
            for attempt in some:
                attempt.values = dict(zip(handler.values, read, strict=False))
        return [each for each in attempts if not each._is_settled]

    def let_another_begin(self, unit: Any) -> None:
        """Let another job begin in the place of one, or of a batch, that goes on."""
        self._worker.runner.release(unit)

    def hand_back_for_a_while(self, attempt: Attempt, reason: str) -> None:
        """Let a job wait whose values are on a server that is away. It loses no attempt."""
        node = attempt._node
        if node not in self.without_values:
            _log.warning("jobs wait for the server of their values", server=node.address, reason=reason)
        self.without_values.add(node)
        self.settler.settle(attempt, "back", wait=AWAY_SECONDS)

    async def _values(self, node: Instance, keys: list[str]) -> dict[str, bytes | None]:
        """Return values by their keys, read some at a time."""
        found = dict[str, bytes | None]()
        while left := keys[len(found) : len(found) + MAX_READ]:
            if len(left) == 1:
                read = await node.ask("MGET", *left)
            else:
                read = await node.run(_values, keys=left, most=MAX_VALUE_BYTES)
            found |= zip(left, read, strict=False)
        return found

    async def _create_groups(self, start: str | None = None) -> None:
        """Create the group of each stream that has none, at ``start`` or where its processor says."""
        for key, name in self._names.items():
            where = start or self._worker.options.handlers[name].start
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
        self._wrong[key] = time.monotonic() + LOOK_SECONDS

    async def _trouble(self, error: Exception) -> None:
        """Wait after an error, longer each time; make groups again that somebody has deleted."""
        self._failures += 1
        if "WRONGTYPE" in str(error):
            with suppress(RedisError, OSError):
                await self._create_groups("0")
        elif "NOGROUP" in str(error):
            with suppress(RedisError, OSError):
                await self._create_groups("0")
                _log.warning("the group was gone and is there again", server=self.node.address, group=self._group)
        elif not passes(error) or self._failures == 1:
            _log.warning("cannot read jobs", server=self.node.address, reason=str(error) or type(error).__name__)
        self._news.clear()  # to wait in any case
        await self._wait_for_news(BACKOFF.delay_after(self._failures))

    async def _wait_for_news(self, seconds: float) -> None:
        """Wait until something has changed since this round of reading began."""
        if self._worker.stopping:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def wake(self) -> None:
        """End a read that waits, since something has changed."""
        self._news.set()
        if self._wire.is_open and self._wire.id is not None:
            self._tasks.begin(self._unblock(self._wire.id))

    async def _unblock(self, id: int) -> None:
        try:
            async with asyncio.timeout(MAX_SILENCE):
                while self._wire.is_open and self._wire.waiting:
                    await self.node.command("CLIENT", b"UNBLOCK", id)
                    if not self._worker.stopping:
                        return
                    await asyncio.sleep(LEAST_SECONDS)
        except (RedisError, OSError, PenstockError, TimeoutError):
            self._wire.end(ConnectionError("the consumer stops"), told=False)

    def cut_if_silent(self) -> None:
        """End the connection of a read whose reply is overdue."""
        self._wire.cut_if_silent(BLOCK_SECONDS + MAX_SILENCE)

    def note(self) -> None:
        """Note that the server has come or gone."""
        self._news.set()

    def _resume(self) -> None:
        """Go on after outcomes had to wait."""
        self._news.set()
        self._worker.resume()

    def _heard(self, stream: str, message: bytes | None) -> None:
        """Act on what somebody has changed; on None look at everything."""
        verb, _, word = decoded(message or b"due 0").partition(" ")
        if verb == "due":
            with suppress(ValueError):
                self.tender.within(float(word))
                self._news.set()
        elif verb == "cancel":
            self._tasks.begin(self._forget(stream, encoded(word)))
            self._worker.cancel(self, encoded(word), stream)
        elif verb == "pause" and stream not in self.paused:
            self.paused.add(stream)
            self.wake()
        elif verb == "play":
            self.tender.within(0)

    # What is in hand

    async def renew(self, attempts: Iterable[Attempt]) -> None:
        """Renew ``attempts`` and their permits, and give up those that others have."""
        by_stream = dict[str, list[Attempt]]()
        for attempt in attempts:
            by_stream.setdefault(attempt.stream, []).append(attempt)
        for name, found in by_stream.items():
            for first in range(0, len(found), MAX_RENEWED):
                with suppress(RedisError, OSError, PenstockError):  # others claim them, and then they are given up
                    await self._renew(name, found[first : first + MAX_RENEWED])

    async def renew_through(self, redis: Redis, attempts: Sequence[Attempt]) -> None:
        """Renew attempts by a client of another thread, without giving up what others have."""
        by_stream = dict[str, list[Attempt]]()
        for attempt in attempts:
            by_stream.setdefault(attempt.stream, []).append(attempt)
        for name, found in by_stream.items():
            for first in range(0, len(found), MAX_RENEWED):
                await _renew(redis, **self._renewal(name, found[first : first + MAX_RENEWED]))
        if self.permits:
            await self.permits.renew([each._permit for each in attempts if each._permit], redis)

    def _renewal(self, stream: str, attempts: Sequence[Attempt]) -> dict[str, Any]:
        words = [word for attempt in attempts for word in (attempt.entry, attempt.number)]
        named = {"stream": self._keys.stream(stream), "group": self._group, "consumer": self._consumer.id}
        return named | {"words": words}

    async def _renew(self, stream: str, attempts: list[Attempt]) -> None:
        numbers = [attempt.number for attempt in attempts]
        lost = await self.node.run(_renew, **self._renewal(stream, attempts))
        if self.permits:
            await self.permits.renew([each._permit for each in attempts if each._permit])
        for attempt, number in zip(attempts, numbers, strict=True) if lost else ():
            if attempt.entry in lost and attempt.why is None and not attempt._is_settled and attempt.number == number:
                self._worker.lost(self, attempt)

    async def _forget(self, stream: str, entry: bytes) -> None:
        """Forget the attempts of a job that was cancelled."""
        tries = encoded(self._keys.of_group(stream, self._consumer.group)["tries"])
        with suppress(RedisError, OSError, PenstockError):
            await self.node.command("HDEL", tries, entry, entry + b":suspect")
        await self.note_gone(stream, [entry])

    async def note_gone(self, stream: str, entries: Sequence[bytes]) -> None:
        """Note that jobs have ended that nobody settles."""
        if self._worker.ledger:
            with suppress(RedisError, OSError, PenstockError):
                await self._worker.ledger.gone(self.node, stream, entries)

    def release(self, attempt: Attempt) -> None:
        """Give the permit of an attempt back that has ended."""
        permit, attempt._permit = attempt._permit, None
        if self.permits and permit:
            self._released.append(permit)
            if len(self._released) == 1:
                self._tasks.begin(self._give_back())

    async def _give_back(self) -> None:
        permits, self._released = self._released, []
        assert self.permits
        with suppress(RedisError, OSError, PenstockError):  # they end by themselves
            await self.permits.give_back(permits)

    async def close(self) -> None:
        """Leave the groups, and disconnect."""
        for channel, listener in self._listeners:
            self.node.subscriber.remove(channel, listener)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=MAX_SILENCE)
        await self.tender.close()
        for name in self.streams:
            with suppress(RedisError, OSError, PenstockError):
                if not self.node.is_away:
                    words = {"group": self._group, "consumer": self._consumer.id}
                    await self.node.run(_leave, stream=self._keys.stream(name), **words)
        await self.settler.close()
        await self._tasks.cancel()
        await self._wire.close()


def _without_spaces(key: str) -> str:
    """Return a name for a key of a limit: a space ends it where it stands before the id of an entry."""
    return key.replace("%", "%25").replace(" ", "%20")
