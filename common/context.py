"""The context of a run: settings, connections, identity, and the moves that every service shares."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Self

from redis.exceptions import ResponseError

from common.in_flight import ArrivalCounter
from common.settle import Batch, Event, Settling
from common.settle_ahead import SettlingAhead
from common.transaction import Taken, Transaction
from common.wired import FULL_POLL_SECONDS, S, Wired
from penstock.base.errors import WrongCall
from penstock.base.keys import Keys
from penstock.core.connection import MAX_SILENCE
from penstock.core.link import is_full
from penstock.core.raw_connection import pack
from penstock.core.script import Script

UNBLOCK_SECONDS: Final = 0.02
"""Seconds in which a wait reaches the server, so that it can be ended."""


@dataclass
class Context(Wired[S], Generic[S]):
    """One run of a service, from (re)connection or lease to the next."""

    adopted: Counter[str] = field(default_factory=Counter)
    """How many messages were adopted from dead instances, by the name of the pending list without the id."""
    _beside: "dict[str, Self]" = field(default_factory=dict)
    _woken: bool = False
    _waits: bool = False
    _settling: Settling | None = None

    def beside(self, name: str) -> "Self":
        """Return this run on a wire of its own, for a second wait beside the first; the same for the same name."""
        if name not in self._beside:
            own: dict[str, Any] = {"name": name, "_beside": {}, "_under_way": deque(), "_known": set()}
            self._beside[name] = replace(self, _woken=False, _waits=False, **own)
        other = self._beside[name]
        other.id, other.token, other.registration = self.id, self.token, self.registration
        return other

    @property
    def required_keys(self) -> Keys:
        """Return ``keys``; raise ``WrongCall`` without a namespace."""
        if self.keys is None:
            raise WrongCall(f"{self.settings.service} needs redisNamespace")
        return self.keys

    async def batches(self, most: int = 500, size: int = 1_048_576, *, ahead: bool = False) -> AsyncIterator[Batch]:
        """Yield batches of messages until the run ends: first what was left in hand, then what comes to ``in``.

        A batch has at most ``most`` messages, and no more once they have ``size`` bytes. Settle each one before you
        ask for the next. With ``ahead`` the server settles a batch of a backlog, and reads one more, while you work on
        the next; ``settle`` returns True before that, and what was not settled comes again. Raise ``WrongCall`` if the
        settings have not exactly one field of each of the types ``In``, ``Pending`` and ``PopTimeout``.
        """
        self._settling = (SettlingAhead if ahead else Settling)(self, self.take, self.count)
        async for batch in self._settling.batches(most, size):
            yield batch

    async def settle(
        self,
        batch: Batch,
        to: Mapping[str, Sequence[bytes]] = {},
        dead: Iterable[tuple[bytes, str]] = (),
        events: Iterable[Event] = (),
        history: int = 100_000,
        answers: Mapping[str, Sequence[bytes]] = {},
        life: int = 60,
        broken: Mapping[str, int] = {},
    ) -> bool:
        """Push what becomes of ``batch``, count it and remove the batch from the pending list: all or nothing.

        ``to`` maps lists that the settings name for output to messages, oldest first; ``dead`` has messages and why
        each is a dead letter. Messages of neither count as dropped. ``events`` are appended to the event stream,
        which keeps about ``history``.

        ``answers`` maps lists that messages have named to what is pushed there instead of them. Have each such name
        checked by ``ReplyRules`` before. A list that an answer creates lives ``life`` seconds; any other keeps its TTL.
        If a list has the wrong type, its answers become dead letters. Together with the batch they are counted as
        delivered by the list that the batch came from, since names that come in messages are without bound. ``broken``
        says how many of them say that a list is too long, by the list: the metric ``broken`` counts these.

        Return False if nothing was done, since the pending list has changed or the server is full: the next batch then
        begins with the same messages. If the script fails for a reason that nobody foresaw, they come one at a time
        then, and one that fails alone three times becomes a dead letter, ``poison``; without any, the error is raised.

        Raise as ``settled`` does, and ``WrongCall`` for an unknown list or a batch that is not the last one.
        """
        if self._settling is None:
            raise WrongCall("settle takes a batch of batches()")
        return await self._settling.settle(batch, to, dead, events, history, answers, life, broken)

    async def settle_by(self, script: Script, batch: Batch, *, isolates: bool = False, **named: Any) -> Any:
        """Settle ``batch`` by a ``script`` of the service's own, ``WITH lease``, ``in_hand`` and ``held``.

        Their keys and arguments are given, ``named`` are all others. Return the script's result, or ``REFUSED`` if the
        server is full. Unless it has removed the batch, the next one begins with the same messages. If it ``isolates``
        and the script fails for a reason that nobody foresaw, do as ``settle`` does, and return ``REFUSED``.
        """
        if self._settling is None:
            raise WrongCall("settle_by takes a batch of batches()")
        return await self._settling.settle_by(script, batch, named, isolates=isolates)

    async def take(
        self,
        source: str,
        pending: str,
        longest: float,
        then: Transaction | None = None,
        count: ArrivalCounter | None = None,
        before: Callable[[], Awaitable[bool]] | None = None,
    ) -> Taken:
        """Wait for a message of ``source`` and move the oldest to ``pending``, at most ``longest`` seconds.

        If ``pending`` is ``source``, wait without moving anything. The result says whether there is something to do: a
        message came, ``wake`` was called, or ``pending`` holds a message that no reply brought: the wait of a lost
        connection goes on in the server until it notices. If cancelled, cut the wire; what the server has moved is in
        ``pending`` for the next run. The server executes ``then`` as soon as the wait is over, without a round trip
        between; ``settled`` returns its outcome. In the same way ``count`` counts what was moved, even if this process
        dies meanwhile.

        A full server refuses to wait. Then there is something to do as soon as ``source`` holds a message, and the next
        script must take it from there.
        """
        self._waits = self.running and not self._woken
        if self.name in self._failing:  # what was in hand is settled by now, or gone
            self._recovered(certain=True)
        try:
            if then:
                self._under_way.append(then)
                if not self._waits:
                    await self.wire.send(then.packed)
            if self._waits:
                side = "RIGHT" if pending == source else "LEFT"
                wait = pack([("BLMOVE", source, pending, "RIGHT", side, longest)])
                behind = then or count
                await self.wire.send(wait + (behind.packed if behind else b""))
            if before and not await before() and self._waits:
                await self._end_wait()
            if self._waits:
                reply, *counted = await self.wire.receive(2 if count else 1)
                if count:
                    count.answered(*counted)
                if is_full(reply):
                    self.outage.full_server(reply)
                    return Taken(then is not None or await self._look_out(source, pending, longest))
                self.outage.has_room()
                if isinstance(reply, ResponseError):
                    raise await self.named(reply, source, pending)
                if reply is not None:
                    return Taken(anything=True, message=reply)
                if then is None and (counted[0] if count else await self.redis.exists(pending)):
                    return Taken(anything=True)
            return Taken(self._woken and self.running)
        finally:
            self._waits = self._woken = False

    async def count(self, count: ArrivalCounter | None) -> None:
        """Count what a wait has moved, though nothing could be taken."""
        if count:
            await self.wire.send(count.packed)
            (reply,) = await self.wire.receive(1)
            count.answered(reply)

    async def _end_wait(self) -> None:
        """End the wait that has just begun."""
        await asyncio.sleep(UNBLOCK_SECONDS)
        await self.redis.execute_command("CLIENT", "UNBLOCK", self.wire.id)

    async def _look_out(self, source: str, pending: str, longest: float) -> bool:
        """Poll for a message for at most ``longest`` seconds; return whether there is one, or ``wake`` was called."""
        until = time.monotonic() + longest
        while self.running and not self._woken:
            if await self.redis.exists(source, pending):
                return True
            if time.monotonic() >= until:
                return False
            await self.pause(FULL_POLL_SECONDS)
            try:
                await self.redis.execute_command("LMOVE", pending, pending, "RIGHT", "RIGHT")  # changes nothing
            except ResponseError as error:
                if not is_full(error):
                    raise
            else:
                self.outage.has_room()
                return self.running
        return self.running

    @property
    def is_woken(self) -> bool:
        """Return whether ``take`` will not wait."""
        return self._woken

    async def wake(self) -> None:
        """End the wait in ``take``, or the next one before it begins."""
        self._woken = True
        while self._waits and self._woken and self.wire.id is not None:
            await self.wire.cut_if_silent(self.settings.longest_wait + MAX_SILENCE)
            await self.redis.execute_command("CLIENT", "UNBLOCK", self.wire.id)
            await asyncio.sleep(UNBLOCK_SECONDS)
        for other in self._beside.values():
            await other.wake()

    async def reset(self) -> None:
        """Forget, after an error, what is under way, and cut the connections that may still bring replies to it."""
        self._under_way.clear()
        await self.wire.close()
        for other in self._beside.values():
            await other.reset()

    def stop(self) -> None:
        """End this run; follow with ``wake``."""
        self._stopped.set()
