"""A list moved to another server, in order and once, several batches on the way at a time.

The sender numbers the messages of a source from 1 and keeps them in a pending list until they have arrived; the other
server keeps, in the same transaction as the messages, the number of the last one. So the outcome of a batch that was
never answered does not matter: it is sent again, and has its effect once. docs/transport.md tells why this suffices.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError, TimeoutError

from penstock.connection import ELSEWHERE
from penstock.errors import Fenced, Refused, TargetLost, WrongType
from penstock.lua import Script, ours
from penstock.wire import Command, Packed, Wire, pack

LUA: Final = Path(__file__).parent / "lua"
next_messages, settle, _arrive, _meet = (
    Script.read(LUA / f"{verb}.lua") for verb in ("next", "settle", "arrive", "meet")
)


IN_SCRIPT: Final = re.compile(
    r"^Error running script .*?@user_script:\d+: (?:@user_script: \d+: )?(?:-(?:OOM |READONLY )?)?"
    r"| script: (?:\w+, )?on @user_script.*$"
)
"""Where in which script a server met the error that it tells (Redis 6.2 says it twice), and what clients cut off."""
BACKLOG: Final = 100
"""So many messages at once mean that more wait."""
MANY: Final = 100
"""More messages than that are pushed past the script; for fewer one command is less work than five."""
LARGEST: Final = 536_870_912
"""Bytes of the largest message that a server takes unless it is set otherwise: ``proto-max-bulk-len``."""
GATHER: Final = 0.005
"""Seconds before what has arrived is settled while more is on its way."""


class Dead(NamedTuple):
    """A message that the other server will never have."""

    number: int
    reason: str
    error: str


class Outgoing(NamedTuple):
    """What is pushed there for some messages of here."""

    messages: list[bytes]
    dead: list[Dead]


Prepare = Callable[[int, list[bytes], int], Outgoing]
"""Takes the number of the first message, messages, and how many bytes a server reads for them: none has more."""


def unchanged(first: int, messages: list[bytes], size: int) -> Outgoing:
    return Outgoing(messages, [])


class Source(Protocol):
    """The messages here; numbers are those of ``sequence`` in ``settle.lua``."""

    async def take(self, first: int) -> list[bytes]:
        """The messages from number ``first`` on, as many as one batch may have; none where nothing waits."""

    async def settle(self, last: int, dead: "list[Dead]") -> None:
        """Forget those up to ``last``: they have arrived, but for ``dead``, which never will."""

    async def wait(self, first: int) -> list[bytes] | None:
        """As ``take``, once something may be there; None for the end."""


class Arrived(NamedTuple):
    """What the other server has of a source: ``last`` is 0 where it knows nothing of it."""

    token: int
    """The highest that it had seen before; the sender's own must be higher."""
    last: int
    first: int
    digest: bytes
    """SHA-1 of the messages from ``first`` to ``last``, as ``digest_of`` makes it."""


async def largest_message(redis: "Redis") -> int:
    """Bytes of the largest message that a server takes; as usual if we may not ask."""
    limits: Any = {}
    with suppress(ResponseError):
        limits = await redis.config_get("proto-max-bulk-len")
    return int(limits.get("proto-max-bulk-len", LARGEST))


def digest_of(messages: Packed) -> bytes:
    return sha1(messages.data, usedforsecurity=False).hexdigest().encode()


class Target:
    """The list ``out`` of the other server, and the ledger of what arrived there from one source."""

    def __init__(self, wire: Wire, out: str, source: str, token: int) -> None:
        self._wire, self._out, self._ledger = wire, out, f"{out}:from:{source}"
        self._door = f"{self._ledger}:door"
        self._named: dict[str, Any] = {"out": out, "ledger": self._ledger, "token": token}
        self._owed: deque[int] = deque()
        """How many replies each batch on the way will bring."""

    async def meet(self) -> Arrived:
        """What is there; whoever sent with a lower token is refused from now on.

        Raises ``Refused`` where the server does not want it, ``ConnectionError`` or ``TimeoutError`` where it is away.
        """
        try:
            calls = [
                _arrive.by_source(**self._named, first=1, last=1, digest="", messages=Packed(), **door)
                for door in ({}, {"door": self._door})
            ]
            loads = [("SCRIPT", "LOAD", source) for _, source, *_ in calls]
            meeting = _meet.by_source(ledger=self._ledger, token=self._named["token"])
            # In a MULTI, for no other reason than to know that there may be one.
            await self._wire.send(pack([*loads, ("MULTI",), meeting, ("EXEC",)]))
            *_, (met,) = map(_checked, await self._wire.receive(5))
            _checked(met)
        except RedisError as error:
            raise refused(error) from error
        token, last, first, digest = met
        return Arrived(int(token), int(last or 0), int(first or 0), digest)

    async def send(self, first: int, last: int, digest: bytes, messages: Packed) -> None:
        """Send ``messages`` for those from ``first`` to ``last``; ``arrived`` has the answer. Raises like ``meet``."""
        named = {**self._named, "first": first, "last": last, "digest": digest}
        commands: list[Command]
        if messages.count <= MANY:
            commands = [_arrive.by_digest(**named, messages=messages)]
        else:
            oldest, others = messages.split()
            call = _arrive.by_digest(**named, messages=oldest, door=self._door)
            push, open_ = ("LPUSHX", self._door, others), ("RENAMENX", self._door, self._out)
            commands = [("MULTI",), call, push, open_, ("EXEC",)]
        self._owed.append(len(commands))
        try:
            await self._wire.send(pack(commands))
        except RedisError as error:
            raise refused(error) from error

    async def arrived(self) -> int:
        """The number of the last message there, by the answer to the oldest ``send``. Raises as ``meet`` does."""
        try:
            *_, answer = map(_checked, await self._wire.receive(self._owed.popleft()))
            last = _checked(answer[0]) if isinstance(answer, list) else answer
        except RedisError as error:
            raise refused(error) from error
        return int(last)


def _checked(reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        error = ours(reply)
        if isinstance(error, Fenced):
            raise Fenced(f"{ELSEWHERE}{error}")
        raise Refused(f"{ELSEWHERE}{error}") if isinstance(error, WrongType) else error
    return reply


def refused(error: RedisError) -> Exception:
    """What the other server says, and trouble with the connection to it, told as such; that stays of its type."""
    if isinstance(error, ResponseError | AuthenticationError):
        return Refused(f"{ELSEWHERE}{IN_SCRIPT.sub('', str(error))}")
    return type(error)(f"{ELSEWHERE}{error}") if isinstance(error, ConnectionError | TimeoutError) else error


async def catch_up(source: Source, arrived: Arrived, settled: int, prepare: Prepare = unchanged) -> int | None:
    """Settle what has arrived though nobody here was told; the number of the last settled message then.

    None where what arrived is not what is here: the server of ``source`` has lost data. Raises ``TargetLost`` where it
    is the other one.
    """
    if arrived.last < settled:
        raise TargetLost(f"the other server has {arrived.last} messages of ours, of {settled} that had arrived")
    digest, number = sha1(usedforsecurity=False), settled + 1
    dead: list[Dead] = []
    while number <= arrived.last:
        messages = (await source.take(number))[: arrived.last - number + 1]
        if not messages:
            return None
        digest.update(Packed.of(messages[max(arrived.first - number, 0) :]).data)
        dead += prepare(number, messages, len(Packed.of(messages).data)).dead
        number += len(messages)
    if arrived.last > settled:
        if digest.hexdigest().encode() != arrived.digest:
            return None
        await source.settle(arrived.last, dead)
    return arrived.last


@dataclass
class Batch:
    """Some messages on their way."""

    first: int
    last: int
    bytes: int
    dead: list[Dead]
    sent: float = field(default_factory=time.monotonic)


class Transfer:
    """Keeps up to ``window`` batches, of ``window_bytes`` together, on the way from ``source`` to ``target``."""

    def __init__(
        self,
        source: Source,
        target: Target,
        window: int,
        window_bytes: Callable[[], int],
        prepare: Prepare = unchanged,
        note: Callable[[Batch], object] = lambda batch: None,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """``note`` is told of each batch that has arrived; no more is sent once ``goes_on`` says no."""
        self._source, self._target, self._prepare, self._note = source, target, prepare, note
        self._window, self._window_bytes, self._goes_on = window, window_bytes, goes_on
        self._on_the_way: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._bytes = 0
        self._room, self._news = asyncio.Event(), asyncio.Event()
        self._arrived = 0
        self._dead: list[Dead] = []
        self._all_arrived = False

    async def run(self, settled: int) -> None:
        """Move what follows number ``settled`` until ``source`` has no more; then all that was sent has arrived."""
        self._arrived = settled
        self._room.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(settled + 1, tasks))
            tasks.create_task(self._confirm())
            tasks.create_task(self._settle(settled))

    async def _send(self, first: int, tasks: asyncio.TaskGroup) -> None:
        """With a backlog the next messages are asked for while those in hand are packed and sent."""
        ahead = None
        while self._goes_on():
            await self._room.wait()
            messages = await (ahead or self._source.take(first)) or await self._source.wait(first)
            ahead = None
            if messages is None:
                break
            if not messages:
                continue
            if len(messages) >= BACKLOG:
                ahead = tasks.create_task(self._source.take(first + len(messages)))
                await asyncio.sleep(0)
            packed = Packed.of(messages)
            digest, outgoing = digest_of(packed), self._prepare(first, messages, len(packed.data))
            if outgoing.messages is not messages:
                packed = Packed.of(outgoing.messages)
            batch = Batch(first, first + len(messages) - 1, len(packed.data), outgoing.dead)
            self._on_the_way.put_nowait(batch)
            self._bytes += batch.bytes
            self._look_for_room()
            await self._target.send(first, batch.last, digest, packed)
            first = batch.last + 1
        if ahead:
            await ahead
        self._on_the_way.put_nowait(None)

    async def _confirm(self) -> None:
        while batch := await self._on_the_way.get():
            last = await self._target.arrived()
            if last != batch.last:
                raise Refused(f"the other server has {last} messages where {batch.last} were expected")
            self._bytes -= batch.bytes
            self._look_for_room()
            self._arrived = last
            self._dead += batch.dead
            self._news.set()
            self._note(batch)
        self._all_arrived = True
        self._news.set()

    async def _settle(self, settled: int) -> None:
        while not (self._all_arrived and settled == self._arrived):
            await self._news.wait()
            if not self._on_the_way.empty():
                await asyncio.sleep(GATHER)
            self._news.clear()
            last, dead, self._dead = self._arrived, self._dead, []
            if settled != last:
                await self._source.settle(last, dead)
                settled = last

    def _look_for_room(self) -> None:
        """What is on the way is counted as it is put on the queue and taken off when it has arrived."""
        if self._on_the_way.qsize() < self._window and self._bytes < self._window_bytes():
            self._room.set()
        else:
            self._room.clear()
