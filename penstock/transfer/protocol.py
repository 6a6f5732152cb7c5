"""A list moved to another server, in order and once: what both servers are asked.

The sender numbers the messages of a source from 1 and keeps them in a pending list until they have arrived; the other
server keeps, in the same transaction as the messages, the number of the last one. So the outcome of a batch that was
never answered does not matter: it is sent again, and has its effect once. docs/transport.md tells why this suffices.
"""

import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha1
from typing import Any, Final, NamedTuple, Protocol

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError, TimeoutError

from penstock.connection import OTHER_SERVER
from penstock.errors import Fenced, Refused, TargetLost, WrongType
from penstock.raw_connection import Command, Packed, RawConnection, pack
from penstock.script import LUA, Script, translate_error

next_messages, settle, _arrive, _meet = (
    Script.read(LUA / f"{verb}.lua") for verb in ("next", "settle", "arrive", "meet")
)


IN_SCRIPT: Final = re.compile(
    r"^Error running script .*?@user_script:\d+: (?:@user_script: \d+: )?(?:-(?:OOM |READONLY )?)?"
    r"| script: (?:\w+, )?on @user_script.*$"
)
"""Where in which script a server met the error that it tells (Redis 6.2 says it twice), and what clients cut off."""
MANY: Final = 100
HEAVY: Final = 65_536
"""More messages, or bytes, than that are pushed past the script; for fewer one command is less work than six."""
LARGEST: Final = 536_870_912
"""Bytes of the largest message that a server takes unless it is set otherwise: ``proto-max-bulk-len``."""


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

    def __init__(self, wire: RawConnection, out: str, source: str, token: int) -> None:
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
        if messages.count <= MANY and len(messages.data) <= HEAVY:
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
        """The number of the last message there, by the answer to the oldest ``send``. Raises as ``meet`` does."""
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
    """What the other server says, and trouble with the connection to it, told as such; that stays of its type."""
    if isinstance(error, ResponseError | AuthenticationError):
        return Refused(f"{OTHER_SERVER}{IN_SCRIPT.sub('', str(error))}")
    return type(error)(f"{OTHER_SERVER}{error}") if isinstance(error, ConnectionError | TimeoutError) else error


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
