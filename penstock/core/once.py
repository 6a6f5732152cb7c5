"""The protocol that moves a list to another server, in order and once.

The sender numbers the messages of a source from 1 and keeps them in a pending list until they have arrived; the other
server stores, in the same transaction as the messages, the number of the last one. So the outcome of a batch that was
never answered does not matter: it is sent again, and has its effect once. docs/transport.md explains why this suffices.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha1
from typing import Any, Final, NamedTuple, Protocol

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError, TimeoutError

from penstock.base.errors import Fenced, Refused, TargetLost, WrongType
from penstock.core.link import OTHER_SERVER
from penstock.core.raw_connection import Command, Packed, RawConnection, pack
from penstock.core.script import LUA, Script, translate_error

next_messages, settle, _arrive, _meet = (
    Script.read(LUA / f"{verb}.lua") for verb in ("next", "settle", "arrive", "meet")
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


class Dead(NamedTuple):
    """A message that the other server will never get."""

    number: int
    reason: str
    error: str


class Outgoing(NamedTuple):
    """What to push to the other server for some messages."""

    messages: list[bytes]
    dead: list[Dead]


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


class TargetState(NamedTuple):
    """What the other server has recorded of a source: ``last`` is 0 if it does not know the source."""

    token: int
    """The highest fencing token before; the sender's own must be higher."""
    last: int
    first: int
    digest: bytes
    """SHA-1 of the messages from ``first`` to ``last``, as ``digest_of`` makes it."""


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


class Target:
    """The list ``out`` of the other server, and its ledger of what has arrived from one source."""

    def __init__(self, wire: RawConnection, out: str, source: str, token: int) -> None:
        self._wire, self._out, self._ledger = wire, out, f"{out}:from:{source}"
        self._door = f"{self._ledger}:door"
        self._named: dict[str, Any] = {"out": out, "ledger": self._ledger, "token": token}
        self._owed: deque[int] = deque()
        """The number of replies to each batch in transit."""

    async def meet(self) -> TargetState:
        """Return what the server has recorded; from now on it refuses senders with a lower token.

        Raise ``Refused`` if the server refuses this, ``ConnectionError`` or ``TimeoutError`` if it is away.
        """
        try:
            calls = [
                _arrive.by_source(**self._named, first=1, last=1, digest="", messages=Packed(), **door)
                for door in ({}, {"door": self._door})
            ]
            loads = [("SCRIPT", "LOAD", source) for _, source, *_ in calls]
            meeting = _meet.by_source(ledger=self._ledger, token=self._named["token"])
            # In a MULTI only to find out whether this user may send one.
            await self._wire.send(pack([*loads, ("MULTI",), meeting, ("EXEC",)]))
            *_, (met,) = map(_checked, await self._wire.receive(5))
            _checked(met)
        except RedisError as error:
            raise refused(error) from error
        token, last, first, digest = met
        return TargetState(int(token), int(last or 0), int(first or 0), digest)

    async def send(self, first: int, last: int, digest: bytes, messages: Packed) -> None:
        """Send ``messages`` for those from ``first`` to ``last``; ``arrived`` reads the answer. Raise like ``meet``."""
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
        """Return the number of the last message there, by the answer to the oldest ``send``. Raise like ``meet``."""
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


async def agree(source: Sender, wire: RawConnection, out: str, encode: Encode = as_they_are) -> tuple[Target, int]:
    """Become the only sender from ``source`` to the list ``out``; return the target and the last settled number.

    Raise ``TargetLost`` if the target has lost data.
    """
    past = -1
    while True:
        source_id, token, settled = await source.begin(past)
        target = Target(wire, out, source_id, token)
        arrived = await target.meet()
        past = arrived.token
        if past >= token:
            continue
        try:
            caught_up = await catch_up(source, arrived, settled, encode)
        except TargetLost as error:
            raise TargetLost(f"{error}: {source.way_out}") from None
        if caught_up is not None:
            return target, caught_up
        await source.lost(arrived.last, settled)


async def catch_up(source: Source, arrived: TargetState, settled: int, encode: Encode = as_they_are) -> int | None:
    """Settle messages that have arrived without a local record of it; return the last settled number then.

    Return None if the local messages are not those that arrived: the server of ``source`` has lost data. Raise
    ``TargetLost`` if the target has lost data.
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
        dead += encode(number, messages, len(Packed.of(messages).data)).dead
        number += len(messages)
    if arrived.last > settled:
        if digest.hexdigest().encode() != arrived.digest:
            return None
        await source.settle(arrived.last, dead)
    return arrived.last
