"""A connection of one's own, for commands that are packed once and sent often."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, Self

from hiredis import pack_command
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, ResponseError
from redis.exceptions import TimeoutError as Unanswered

from penstock.connection import MAX_SILENCE, connect

Word = bytes | str | int | float
MAX_CACHED_LENGTH: Final = 4_096
"""Bytes of the longest words whose heads are kept."""


class Packed:
    """Several words of a command to come, as the bytes that the server reads: for work done ahead."""

    def __init__(self, words: Sequence[Word] = ()) -> None:
        self.count = len(words)
        self.data = _packed(tuple(words)).partition(b"\r\n")[2] if words else b""

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> "Self":
        """The same for bytes alone, in a third of the time."""
        packed = cls()
        lengths = list(map(len, messages))
        if lengths:
            head, packed.count = _HEADS[lengths[0]], len(lengths)
            if lengths.count(lengths[0]) == len(lengths):
                rest = [head.join(messages)]
            else:
                rest = [b""] * (2 * len(lengths) - 1)
                rest[::2], rest[1::2] = messages, map(_HEADS.__getitem__, lengths[1:])
            packed.data = b"".join((head[2:], *rest, b"\r\n"))
        return packed


class _Heads(dict[int, bytes]):
    """What ends a word and begins the next one, by its length."""

    def __missing__(self, length: int) -> bytes:
        head = b"\r\n$%d\r\n" % length
        if length < MAX_CACHED_LENGTH:
            self[length] = head
        return head


_HEADS: Final = _Heads()
Command = tuple[Word | Packed, ...]


def pack(commands: Sequence[Command]) -> bytes:
    """``commands`` as the bytes that the server reads."""
    return b"".join(part for command in commands for part in _parts(command))


def _packed(command: Command) -> bytes:
    packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub: one word
    return packed


def _parts(command: Command) -> list[bytes]:
    """Apart, since large words should be copied once."""
    if Packed not in map(type, command):
        return [_packed(command)]
    parts: list[bytes] = []
    count = 0
    for word in command:
        if isinstance(word, Packed):
            count += word.count
            parts.append(word.data)
        else:
            count += 1
            parts.append(_one(word))
    return [b"*%d\r\n" % count, *parts]


def _one(word: Word) -> bytes:
    encoded = word if isinstance(word, bytes) else str(word).encode()
    return b"$%d\r\n%b\r\n" % (len(encoded), encoded)


class RawConnection:
    """The one connection of ``redis``, held until ``close``, for whoever sends and reads in turn.

    A round trip costs about half of what it does through the client: no pool, no packing, no timer of its own. A link
    that swallows packets is noticed by whoever calls ``cut_if_silent`` now and then.
    """

    def __init__(self, redis: "Redis") -> None:
        self.redis = redis
        self.id: int | None = None
        """What the server calls the connection, by which another one can end a wait on it; see ``to``."""
        self._connection: Any = None
        self._asked: float | None = None

    @classmethod
    def to(cls, url: str, name: str) -> "RawConnection":
        """With a client of its own, that waits as long as it takes and shows as ``name`` in CLIENT LIST."""
        wire: RawConnection

        async def note_id(connection: Any) -> None:
            try:
                async with asyncio.timeout(MAX_SILENCE):
                    await connection.on_connect()
                    await connection.send_command("CLIENT", "ID")
                    wire.id = await connection.read_response()
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if isinstance(error, TimeoutError):
                    raise Unanswered("no answer while connecting") from None
                raise

        wire = cls(connect(url, silence=None, name=name, on_connect=note_id))
        return wire

    async def send(self, packed: bytes) -> None:
        """Send, without waiting for replies. Nothing is ever sent twice: a lost connection is the caller's to judge.

        Raises ``ConnectionError`` or ``TimeoutError`` of redis-py.
        """
        if self._connection is None:
            self._connection = await self.redis.connection_pool.get_connection()
        self._asked = time.monotonic()
        try:
            await self._connection.send_packed_command([packed])
        except BaseException:
            await self.close()
            raise

    async def receive(self, replies: int, *, owed: bool = True) -> list[Any]:
        """The next ``replies`` replies; an error of the server stands in its place. Raises as ``send`` does.

        Where they are not ``owed``, as the messages of a subscription, silence means nothing.
        """
        received: list[Any] = []
        if self._connection is None:
            raise ConnectionError("the connection is closed")
        if owed:
            self._asked = self._asked or time.monotonic()  # others may be under way
        try:
            while len(received) < replies:
                try:
                    received.append(await self._connection.read_response())
                except ResponseError as error:
                    received.append(error)
        except BaseException:
            await self.close()
            raise
        self._asked = None
        return received

    async def cut_if_silent(self, longest: float) -> None:
        """Cut the connection where a reply has been missing for more than ``longest`` seconds; ``receive`` raises."""
        if self._connection and self._asked is not None and time.monotonic() - self._asked > longest:
            await self._connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Give the connection back, cut: what was under way must not be read by the next who has it."""
        self._asked = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)
            await self.redis.connection_pool.release(connection)
