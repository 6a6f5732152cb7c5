"""A dedicated connection for packed commands, at half the cost of a round trip through redis-py's client."""

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
"""Longest words (bytes) whose RESP header is cached."""


class Packed:
    """Some words of a command, packed in advance as RESP."""

    def __init__(self, words: Sequence[Word] = ()) -> None:
        self.count = len(words)
        self.data = _packed(tuple(words)).partition(b"\r\n")[2] if words else b""

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> "Self":
        """Pack ``messages``: as the constructor, for bytes only, in a third of the time."""
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
    """The RESP bytes between two words, by the length of the second."""

    def __missing__(self, length: int) -> bytes:
        head = b"\r\n$%d\r\n" % length
        if length < MAX_CACHED_LENGTH:
            self[length] = head
        return head


_HEADS: Final = _Heads()
Command = tuple[Word | Packed, ...]


def pack(commands: Sequence[Command]) -> bytes:
    """Return ``commands`` as RESP."""
    return b"".join(part for command in commands for part in _parts(command))


def _packed(command: Command) -> bytes:
    packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub: one word
    return packed


def _parts(command: Command) -> list[bytes]:
    """Return the parts of a command's RESP, not joined, so that large words are copied only once."""
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
    """The only connection of ``redis``, held until ``close``; send and receive in turn.

    A round trip costs about half of one through the client: no pool, no packing, no timer. Call ``cut_if_silent``
    regularly to notice a link that drops packets.
    """

    def __init__(self, redis: "Redis") -> None:
        self.redis = redis
        self.id: int | None = None
        """The CLIENT ID, with which another connection can unblock this one; set by ``to``."""
        self._connection: Any = None
        self._asked: float | None = None

    @classmethod
    def to(cls, url: str, name: str) -> "RawConnection":
        """Return a connection to ``url`` that waits for replies without limit, named ``name`` in CLIENT LIST."""
        raw: RawConnection

        async def note_id(connection: Any) -> None:
            try:
                async with asyncio.timeout(MAX_SILENCE):
                    await connection.on_connect()
                    await connection.send_command("CLIENT", "ID")
                    raw.id = await connection.read_response()
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if isinstance(error, TimeoutError):
                    raise Unanswered("no answer while connecting") from None
                raise

        raw = cls(connect(url, silence=None, name=name, on_connect=note_id))
        return raw

    async def send(self, packed: bytes) -> None:
        """Send without waiting for replies. Never send again: the caller decides what a lost connection means.

        Raise redis-py's ``ConnectionError`` or ``TimeoutError``.
        """
        if self._connection is not None and self._asked is None and self._connection._reader.at_eof():
            await self.close()  # the server has closed it while nothing was under way
        if self._connection is None:
            self._connection = await self.redis.connection_pool.get_connection()
        self._asked = time.monotonic()
        try:
            await self._connection.send_packed_command([packed])
        except BaseException:
            await self.close()
            raise

    async def receive(self, replies: int, *, owed: bool = True) -> list[Any]:
        """Return the next ``replies`` replies, errors of the server among them. Raise as ``send`` does.

        Pass ``owed=False`` for replies that may never come, e.g. messages of a subscription: silence is no loss then.
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
        """Cut the connection if a reply has been missing for ``longest`` seconds; ``receive`` then raises."""
        if self._connection and self._asked is not None and time.monotonic() - self._asked > longest:
            await self._connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Return the connection to the pool, disconnected: its next user must not read replies under way."""
        self._asked = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)
            await self.redis.connection_pool.release(connection)
