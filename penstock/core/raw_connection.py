"""A dedicated connection for packed commands, at half the cost of a round trip through redis-py's client."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, Self

from hiredis import pack_command
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, BusyLoadingError, ConnectionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as Unanswered

from penstock.base.encoding import encoded
from penstock.core.connection import MAX_SILENCE, connect
from penstock.core.link import Fate, fate

Word = bytes | str | int | float
MAX_CACHED_LENGTH: Final = 4_096
"""Longest words (bytes) whose RESP header is cached."""

ANSWERS: Final = ResponseError, BusyLoadingError, AuthenticationError
"""Errors that a server answers. Of those redis-py takes all but the first for the loss of the connection."""

LARGE: Final = 65_536
"""Bytes of a word from which hiredis packs it slowly: 2 ms for 1 MB, where a copy takes 0.1 ms."""


class Packed:
    """Some words of a command, packed in advance as RESP."""

    def __init__(self, words: Sequence[Word] = ()) -> None:
        self.count = len(words)
        self.data = pack_small(tuple(words)).partition(b"\r\n")[2] if words else b""

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> "Self":
        """Pack ``messages``: as the constructor, for bytes only, in a third of the time. Copy large ones only once."""
        packed = cls()
        lengths = list(map(len, messages))
        if lengths:
            head, packed.count = _HEADS[lengths[0]], len(lengths)
            if lengths[0] <= MAX_CACHED_LENGTH and lengths.count(lengths[0]) == len(lengths):
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


def pack_small(command: Command) -> bytes:
    """Return as ``pack`` one command without large words, and without words that are packed."""
    try:
        packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub: one word
    except UnicodeEncodeError:  # a name of any bytes
        words = tuple(encoded(word) if isinstance(word, str) else word for word in command)
        packed = pack_command(words)  # type: ignore[arg-type]
    return packed


def _parts(command: Command) -> list[bytes]:
    """Return the parts of a command's RESP, not joined, so that large words are copied only once."""
    large = [word for word in command if type(word) is bytes and len(word) > LARGE]
    if not large and Packed not in map(type, command):
        return [pack_small(command)]
    parts: list[bytes] = []
    count = 0
    for word in command:
        if isinstance(word, Packed):
            count += word.count
            parts.append(word.data)
        elif isinstance(word, bytes) and len(word) > LARGE:
            count += 1
            parts += (b"$%d\r\n" % len(word), word, b"\r\n")
        else:
            count += 1
            parts.append(_one(word))
    return [b"*%d\r\n" % count, *parts]


def push_parts(name: str, messages: Sequence[bytes]) -> list[bytes]:
    """Return an LPUSH of large ``messages`` as parts of RESP, which are not copied."""
    parts = [b"*%d\r\n%b%b" % (len(messages) + 2, _one("LPUSH"), _one(name).removesuffix(b"\r\n"))]
    for message in messages:
        parts += (_HEADS[len(message)], message)
    return [*parts, b"\r\n"]


def _one(word: Word) -> bytes:
    data = word if isinstance(word, bytes) else encoded(str(word))
    return b"$%d\r\n%b\r\n" % (len(data), data)


class Prefix:
    """A command whose last word differs from call to call: the others are packed once."""

    def __init__(self, *words: Word) -> None:
        self._head = pack([(*words, b"")]).removesuffix(b"$0\r\n\r\n")

    def pack(self, last: bytes) -> bytes:
        """Return the command with its last word as RESP."""
        return b"%b$%d\r\n%b\r\n" % (self._head, len(last), last)


class RawConnection:
    """The only connection of ``redis``, held until ``close``; send and receive in turn.

    A round trip costs about half of one through the client: no pool, no packing, no timer. Call ``cut_if_silent``
    regularly to notice a link that drops packets.
    """

    def __init__(self, redis: "Redis", *, returns: tuple[type[RedisError], ...] = (ResponseError,)) -> None:
        self.redis, self._answers = redis, returns
        """``receive`` returns errors of the types ``returns``, and raises others."""
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

    async def take_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Connect, and hand the transport to ``protocol``, which alone sends and receives then; ``close`` ends it.

        Raise redis-py's ``ConnectionError`` or ``TimeoutError``.
        """
        await self.close()
        self._connection = await self.redis.connection_pool.get_connection()
        transport: asyncio.Transport = self._connection._writer.transport
        if transport.is_closing():  # nobody would tell ``protocol``
            await self.close()
            raise ConnectionError("the server closed the connection")
        transport.set_protocol(protocol)
        return transport

    async def receive(self, replies: int, *, owed: bool = True) -> list[Any]:
        """Return the next ``replies`` replies, errors of the server among them. Raise as ``send`` does.

        Pass ``owed=False`` for replies that may never come, e.g. messages of a subscription: silence is no loss then.
        """
        received: list[Any] = []
        moved = False
        if self._connection is None:
            raise ConnectionError("the connection is closed")
        if owed:
            self._asked = self._asked or time.monotonic()  # others may be under way
        try:
            while len(received) < replies:
                try:
                    received.append(await self._connection.read_response(disconnect_on_error=False))
                except self._answers as error:
                    received.append(error)
                    moved = moved or fate(error) is Fate.ELSEWHERE
        except BaseException:
            await self.close()
            raise
        self._asked = None
        if moved:  # this server is no longer the one
            await self.close()
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
