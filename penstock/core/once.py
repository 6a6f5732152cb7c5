"""Messages from here to another server, in order and once: the near half (``Line``), the far (``Hop``), the transfer.

The sender numbers the messages of a source and keeps them until they have arrived; the other server stores, in the same
transaction as the messages, the number of the last one. So the outcome of a batch that was never answered does not
matter: it is sent again, and has its effect once. docs/transport.md explains why this suffices.
"""

import asyncio
import re
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, Final, NamedTuple, Protocol

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError, TimeoutError

from penstock.base.encoding import decoded
from penstock.base.errors import Fenced, Refused, TargetLost, WrongType
from penstock.core.link import OTHER_SERVER
from penstock.core.raw_connection import Command, Packed, RawConnection, pack
from penstock.core.read_size import Sizes
from penstock.core.script import LUA, Script, translate_error

_begin, next_messages, settle, _disown, _arrive, _meet = (
    Script.read(LUA / f"{verb}.lua") for verb in ("begin", "next", "settle", "disown", "arrive", "meet")
)

IN_SCRIPT: Final = re.compile(
    r"^Error running script .*?@user_script:\d+: (?:@user_script: \d+: )?(?:-(?:OOM |READONLY )?)?"
    r"| script: (?:\w+, )?on @user_script.*$"
)
"""The place in a script that a server adds to an error (Redis 6.2 twice), and the prefix that clients cut off."""
SCRIPT_MESSAGES: Final = 100
SCRIPT_BYTES: Final = 65_536
"""Maximum number of messages, and bytes, that go through a script: for so few, one command is less work than six."""
DEFAULT_MAX_MESSAGE: Final = 536_870_912
"""Bytes of the largest message that a server accepts by default: ``proto-max-bulk-len``."""
SMALLEST_LIMIT: Final = 1 << 20
"""The least that ``proto-max-bulk-len`` can be."""
ASK_SECONDS: Final = 1.0
"""How long to wait for a server to refuse a size."""
BACKLOG: Final = 100
"""Messages of one batch from which on more are expected to wait."""
SETTLE_DELAY: Final = 0.005
"""Seconds before arrived batches are settled while others are in transit."""
SETTLE_BYTES: Final = 4_194_304
"""Bytes after which no more batches are settled at a time."""


class Dead(NamedTuple):
    """A message that the other server will never get."""

    number: int
    reason: str
    error: str


class Outgoing(NamedTuple):
    """What to push to the other server for some messages."""

    messages: list[bytes]
    dead: list[Dead]


Key = str | bytes
Run = Callable[..., Awaitable[Any]]
"""Calls a script, as ``Context.run`` does."""
Encode = Callable[[int, list[bytes], int], Outgoing]
"""Called with the number of the first message, messages, and the bytes that a server reads for them: none has more."""


def as_they_are(first: int, messages: list[bytes], size: int) -> Outgoing:
    return Outgoing(messages, [])


class Source(Protocol):
    """The local messages; their numbers are those of ``sequence`` in ``settle.lua``."""

    async def take(self, first: int) -> list[bytes]:
        """Return the messages from number ``first`` on, as many as one batch may have; [] if none wait."""

    async def settle(self, last: int, dead: "list[Dead]") -> None:
        """Remove the messages up to ``last``: they have arrived, except ``dead``, which never will."""

    async def wait(self, first: int) -> list[bytes] | None:
        """Like ``take``, but wait a while for a message; return None at the end."""


class Sender(Source, Protocol):
    """A source that can become the only one whose messages a target accepts."""

    @property
    def way_out(self) -> str:
        """Return what an operator can do if the target has lost data, in words."""

    async def begin(self, past: int) -> tuple[str, int, int]:
        """Return the source id, a fencing token above ``past`` and all before, and the last settled sequence number.

        Raise ``Fenced`` if another sender has begun.
        """

    async def lost(self, last: int, settled: int) -> None:
        """Take a new source id, or raise: the messages after ``settled`` are not those that arrived up to ``last``."""


class Last(NamedTuple):
    """What the other server has recorded of a source: ``number`` is 0 if it does not know the source."""

    token: int
    """The highest fencing token before; the sender's own must be higher."""
    number: int
    first: int = 0
    digest: bytes = b""
    """SHA-1 of the messages from ``first`` to ``number``, as ``digest_of`` makes it; empty if it keeps none."""


class Hop(Protocol):
    """The far half: a list or queue of another server, and its ledger of what has arrived from one source."""

    @property
    def ids(self) -> Sequence[int]:
        """Return the ids of the messages of the last batch that arrived, if the server gives some."""

    async def meet(self, token: int) -> Last:
        """Return what the server has recorded; from now on it refuses senders with a lower token.

        Raise ``Refused`` if the server refuses this, ``ConnectionError`` or ``TimeoutError`` if it is away.
        """

    async def send(self, first: int, messages: Packed) -> None:
        """Send ``messages``, numbered from ``first`` on; ``arrived`` reads the answer. Raise like ``meet``."""

    async def arrived(self) -> int:
        """Return the number of the last message there, by the answer to the oldest ``send``. Raise like ``meet``."""


async def largest_message(redis: "Redis") -> int:
    """Return the bytes of the largest message that a server accepts: the default if this user may not read it."""
    return await _limit(redis) or DEFAULT_MAX_MESSAGE


async def _limit(redis: "Redis") -> int | None:
    limits: Any = {}
    with suppress(ResponseError):
        limits = await redis.config_get("proto-max-bulk-len")
    return int(limits["proto-max-bulk-len"]) if "proto-max-bulk-len" in limits else None


async def too_large(redis: "Redis", size: int) -> str | None:
    """Return that a message of ``size`` bytes is too large, for which a server cuts the connection; None if not."""
    if size <= SMALLEST_LIMIT:
        return None
    with suppress(RedisError, OSError):
        largest = await _limit(redis)
        if size > largest if largest else await _is_refused(redis, size):
            most = f"{largest:,}" if largest else "less"
            return f"a message of {size:,} bytes, where the server takes {most}: raise its proto-max-bulk-len"
    return None


async def _is_refused(redis: "Redis", size: int) -> bool:
    """Ask the server, on a connection of its own, by announcing a word of ``size`` bytes that is never sent."""
    connection = redis.connection_pool.make_connection()
    try:
        async with asyncio.timeout(ASK_SECONDS):
            await connection.connect()
            await connection.send_packed_command([b"*1\r\n$%d\r\n" % size])
            if (writer := connection._writer).can_write_eof():  # not with TLS: then a server that takes it is silent
                writer.write_eof()
            await connection.read_response()
    except ResponseError as error:
        return "bulk length" in str(error)
    except (RedisError, OSError):
        return False
    finally:
        await connection.disconnect(nowait=True)
    return False


def digest_of(messages: Packed) -> bytes:
    return sha1(messages.data, usedforsecurity=False).hexdigest().encode()


def ledger_of(out: str, source: str) -> str:
    """Return the key of the ledger beside the list ``out`` of what has arrived from ``source``."""
    return f"{out}:from:{source}"


class ListHop:
    """A ``Hop`` to the list ``out``, whose ledger is a hash beside it. Many batches may be in transit at a time."""

    ids: Sequence[int] = ()

    def __init__(self, wire: RawConnection, out: str, source: str) -> None:
        self._wire, self._out, self._ledger = wire, out, ledger_of(out, source)
        self._door = f"{self._ledger}:door"
        self._named: dict[str, Any] = {"out": out, "ledger": self._ledger}
        self._owed: deque[int] = deque()
        """The number of replies to each batch in transit."""

    async def meet(self, token: int) -> Last:
        self._named["token"] = token
        self._owed.clear()
        try:
            calls = [
                _arrive.by_source(**self._named, first=1, last=1, digest="", messages=Packed(), **door)
                for door in ({}, {"door": self._door})
            ]
            loads = [("SCRIPT", "LOAD", source) for _, source, *_ in calls]
            meeting = _meet.by_source(ledger=self._ledger, token=token)
            # In a MULTI only to find out whether this user may send one.
            await self._wire.send(pack([*loads, ("MULTI",), meeting, ("EXEC",)]))
            *_, (met,) = map(_checked, await self._wire.receive(5))
            _checked(met)
        except RedisError as error:
            raise refused(error) from error
        past, last, first, digest = met
        return Last(int(past), int(last or 0), int(first or 0), digest)

    async def send(self, first: int, messages: Packed, last: int | None = None, digest: bytes | None = None) -> None:
        """See ``Hop.send``. ``last`` and ``digest`` are those of the numbered messages if others go for them."""
        last, digest = first + messages.count - 1 if last is None else last, digest or digest_of(messages)
        named = {**self._named, "first": first, "last": last, "digest": digest}
        commands: list[Command]
        if messages.count <= SCRIPT_MESSAGES and len(messages.data) <= SCRIPT_BYTES:
            commands = [_arrive.by_digest(**named, messages=messages)]
        else:
            call = _arrive.by_digest(**named, messages=Packed(), door=self._door)
            push, trim = ("LPUSHX", self._door, messages), ("RPOP", self._door)
            commands = [("MULTI",), call, push, trim, ("RENAMENX", self._door, self._out), ("EXEC",)]
        self._owed.append(len(commands))
        try:
            await self._wire.send(pack(commands))
        except RedisError as error:
            raise refused(error) from error

    async def arrived(self) -> int:
        try:
            *_, answer = map(_checked, await self._wire.receive(self._owed.popleft()))
            last = _checked(answer[0]) if isinstance(answer, list) else answer
        except RedisError as error:
            raise refused(error) from error
        return int(last)


def _checked(reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        error = translate_error(reply)
        if isinstance(error, Fenced):
            raise Fenced(f"{OTHER_SERVER}{error}")
        raise Refused(f"{OTHER_SERVER}{error}") if isinstance(error, WrongType) else error
    return reply


def refused(error: RedisError) -> Exception:
    """Return ``error`` with the prefix "the other server:", as ``Refused``; connection errors keep their class."""
    if isinstance(error, ResponseError | AuthenticationError):
        return Refused(f"{OTHER_SERVER}{IN_SCRIPT.sub('', str(error))}")
    return type(error)(f"{OTHER_SERVER}{error}") if isinstance(error, ConnectionError | TimeoutError) else error


class Line:
    """The near half: messages get numbers as they are taken from ``source``, and stay in ``pending`` until they settle.

    The hash ``state`` has the id of the source, as the other server knows it, and the number of the last settled one.
    """

    def __init__(
        self, redis: "Redis", source: Key, pending: Key, state: Key, lease: Key, token: int, **counters: Key
    ) -> None:
        """``counters`` are the keys of ``held.lua``."""
        self._redis, self._source, self._pending, self._counters = redis, source, pending, counters
        self._state, self._lease = state, lease
        self.who, self.token, self.settled = b"", token, 0
        self.sizes = Sizes()

    async def begin(self, past: int) -> tuple[str, int, int]:
        """Return as ``Sender`` does; the source id is created on first use."""
        fenced = {"state": self._state, "lease": self._lease, "token": self.token}
        self.who, settled, self.token = await _begin(self._redis, **fenced, past=past, new=uuid.uuid4().hex)
        self.settled = int(settled)
        return decoded(self.who), self.token, self.settled

    async def lost(self) -> None:
        """Delete the source id: the messages here are not those that arrived under it. Raise ``Fenced``."""
        await _disown(self._redis, **self.named)

    @property
    def named(self) -> dict[str, Any]:
        """Return who the caller is, as its scripts expect."""
        return {"state": self._state, "lease": self._lease, "token": self.token, "who": self.who}

    def taking(self, first: int, batch: int, size: int) -> dict[str, Any]:
        """Return the arguments of ``next_messages``, for at most ``batch`` messages, and one or ``size`` bytes."""
        bounds = {"next": first, "batch": batch, "bytes": size, "whole": 0, "settled": "", "most": 0}
        lists = {"source": self._source, "pending": self._pending}
        return {**bounds, **lists, **self.sizes.named, **self.named, **self._counters}

    def taken(self, found: tuple[list[bytes], int] | None) -> tuple[list[bytes], int]:
        """Return what ``next_messages`` has ``found``. Raise ``Refused`` if somebody else has changed the messages."""
        if found is None:
            raise self._changed()
        self.sizes.note_all(found[0])
        return found

    async def settle(self, run: Run, last: int, dead: Sequence[Dead], out: Key, keys: Mapping[str, Any] = {}) -> None:
        """Remove the messages up to ``last``; raise as ``taken`` does. ``keys`` are further ones of ``settle.lua``."""
        lists = {"pending": self._pending, "origin": self._source, "out": out}
        buried = [word for letter in dead for word in letter]
        named = {**lists, **self.named, **self._counters, **keys}
        if await run(settle, sequence=last, buried=buried, **named) is None:
            raise self._changed()
        self.settled = last

    def _changed(self) -> Refused:
        pending, state = (decoded(key) if isinstance(key, bytes) else key for key in (self._pending, self._state))
        return Refused(f"{pending} or {state} was changed by somebody else")


async def agree(source: Sender, wire: RawConnection, out: str, encode: Encode = as_they_are) -> tuple[ListHop, int]:
    """Become the only sender from ``source`` to the list ``out``; return the way there and the last settled number.

    Raise ``TargetLost`` if the target has lost data.
    """
    past = -1
    while True:
        source_id, token, settled = await source.begin(past)
        hop = ListHop(wire, out, source_id)
        arrived = await hop.meet(token)
        past = arrived.token
        if past >= token:
            continue
        try:
            caught_up = await catch_up(source, arrived, settled, encode)
        except TargetLost as error:
            raise TargetLost(f"{error}: {source.way_out}") from None
        if caught_up is not None:
            return hop, caught_up
        await source.lost(arrived.number, settled)


async def catch_up(source: Source, arrived: Last, settled: int, encode: Encode = as_they_are) -> int | None:
    """Settle messages that have arrived without a local record of it; return the last settled number then.

    Return None if the local messages are not those that arrived: the server of ``source`` has lost data. Raise
    ``TargetLost`` if the target has lost data.
    """
    if arrived.number < settled:
        raise TargetLost(f"the other server has {arrived.number} messages of ours, of {settled} that had arrived")
    digest, number = sha1(usedforsecurity=False), settled + 1
    dead: list[Dead] = []
    while number <= arrived.number:
        messages = (await source.take(number))[: arrived.number - number + 1]
        if not messages:
            return None
        digest.update(Packed.of(messages[max(arrived.first - number, 0) :]).data)
        dead += encode(number, messages, len(Packed.of(messages).data)).dead
        number += len(messages)
    if arrived.number > settled:
        if digest.hexdigest().encode() != arrived.digest:
            return None
        await source.settle(arrived.number, dead)
    return arrived.number


@dataclass
class Shipment:
    """Messages that are sent together."""

    first: int
    last: int
    bytes: int
    dead: list[Dead]
    sent: float = field(default_factory=time.monotonic)


class Transfer:
    """Sends what ``source`` has over ``hop``, with up to ``max_batches`` in transit, of ``max_bytes()`` together."""

    def __init__(
        self,
        source: Source,
        hop: ListHop,
        *,
        max_batches: int,
        max_bytes: Callable[[], int],
        encode: Encode = as_they_are,
        on_arrival: Callable[[Shipment], object] = lambda batch: None,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> None:
        """Call ``on_arrival`` with each batch that has arrived; send no more once ``keep_going()`` is false."""
        self._source, self._hop, self._encode, self._on_arrival = source, hop, encode, on_arrival
        self._max_batches, self._max_bytes, self._keep_going = max_batches, max_bytes, keep_going
        self._in_transit: asyncio.Queue[Shipment | None] = asyncio.Queue()
        self._bytes = 0
        self._room, self._arrival = asyncio.Event(), asyncio.Event()
        self._arrived: deque[Shipment] = deque()
        """Batches that have arrived and are not settled yet."""
        self._all_arrived = False

    async def run(self, settled: int) -> None:
        """Send what follows number ``settled`` until ``source`` has no more; return when all has arrived."""
        self._room.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(settled + 1, tasks))
            tasks.create_task(self._confirm())
            tasks.create_task(self._settle())

    async def _send(self, first: int, tasks: asyncio.TaskGroup) -> None:
        """Send messages; with a backlog, read the next ones while those in hand are packed and sent."""
        ahead = None
        while self._keep_going():
            await self._room.wait()
            messages = await (ahead or self._source.take(first)) or await self._source.wait(first)
            ahead = None
            if messages is None:
                break
            if not messages:
                continue
            if len(messages) >= BACKLOG or sum(map(len, messages)) > SCRIPT_BYTES:
                ahead = tasks.create_task(self._source.take(first + len(messages)))
                await asyncio.sleep(0)
            packed = Packed.of(messages)
            digest, outgoing = digest_of(packed), self._encode(first, messages, len(packed.data))
            if outgoing.messages is not messages:
                packed = Packed.of(outgoing.messages)
            batch = Shipment(first, first + len(messages) - 1, len(packed.data), outgoing.dead)
            await self._hop.send(first, packed, batch.last, digest)  # connects anew if the server closed an idle link
            self._in_transit.put_nowait(batch)
            self._bytes += batch.bytes
            self._update_room()
            first = batch.last + 1
        if ahead:
            await ahead
        self._in_transit.put_nowait(None)

    async def _confirm(self) -> None:
        while batch := await self._in_transit.get():
            last = await self._hop.arrived()
            if last != batch.last:
                raise Refused(f"the other server has {last} messages where {batch.last} were expected")
            self._bytes -= batch.bytes
            self._update_room()
            self._arrived.append(batch)
            self._arrival.set()
            self._on_arrival(batch)
        self._all_arrived = True
        self._arrival.set()

    async def _settle(self) -> None:
        """Settle in portions, since a server needs a while to free large messages and to bury the dead ones."""
        while not (self._all_arrived and not self._arrived):
            await self._arrival.wait()
            if not self._in_transit.empty():
                await asyncio.sleep(SETTLE_DELAY)
            self._arrival.clear()
            arrived, self._arrived = self._arrived, deque()
            while arrived:
                batch = arrived.popleft()
                size, dead = batch.bytes, batch.dead
                while arrived and size < SETTLE_BYTES and not dead:
                    batch = arrived.popleft()
                    size, dead = size + batch.bytes, batch.dead
                await self._source.settle(batch.last, dead)

    def _update_room(self) -> None:
        """Let more be sent only while fewer batches and bytes than allowed are in transit."""
        if self._in_transit.qsize() < self._max_batches and self._bytes < self._max_bytes():
            self._room.set()
        else:
            self._room.clear()
