"""Two connections to one server that many objects share: one for commands, one for subscriptions."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

from hiredis import ProtocolError, Reader
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError

from penstock.core.link import Fate, LostReply, fate
from penstock.core.raw_connection import Packed, RawConnection, Word, pack

MAX_CHANNELS: Final = 1_000
"""Maximum number of channels in one SUBSCRIBE."""
MUCH: Final = 4_096
"""Bytes that are sent at once, so that the server has something to do meanwhile."""
_INCOMPLETE: Final = object()


class _Link(asyncio.Protocol):
    """What one transport reports to its wire; a wire that has another one by now does not listen."""

    def __init__(self, wire: "Wire") -> None:
        self._wire = wire

    def data_received(self, data: bytes) -> None:
        if self._wire.link is self:
            self._wire.heard(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._wire.link is self:
            self._wire.end(ConnectionError(str(error) if error else "the server closed the connection"))


class Reply:
    """What becomes a reply: await it. A task that is cancelled while it waits does not cancel the reply.

    ``then`` is called with this object as soon as the reply is there.
    """

    __slots__ = ("_value", "_waiter", "error", "is_done", "then")

    def __init__(self, then: Callable[["Reply"], None] | None = None) -> None:
        self.is_done = False
        self.error: Exception | None = None
        self.then = then
        self._value: Any = None
        self._waiter: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.is_done:
            self._waiter = asyncio.get_running_loop().create_future()
            yield from self._waiter
        return self.value()

    def value(self) -> Any:
        """Return the reply; raise if it is an error."""
        if self.error:
            raise self.error
        return self._value

    def done(self) -> bool:
        """Return whether the reply, or an error, is there."""
        return self.is_done

    def cancelled(self) -> bool:
        """Return False: the reply is wanted even if nobody waits for it."""
        return False

    def set_result(self, value: Any) -> None:
        """Note the reply."""
        self._value = value
        self._end()

    def set_exception(self, error: Exception) -> None:
        """Note an error instead."""
        self.error = error
        self._end()

    def _end(self) -> None:
        self.is_done = True
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)
        if self.then:
            self.then(self)


class Wire:
    """A connection of redis-py, taken over once it is logged in.

    A command is sent at once if no reply is missing or if it is large, otherwise together with those of the same turn
    of the loop.
    ``lost`` is called once when the connection ends after ``open``.
    """

    def __init__(self, url: str, name: str, lost: Callable[[Exception], None]) -> None:
        self._raw = RawConnection.to(url, name)
        self._lost = lost
        self.link: _Link | None = None
        self._transport: asyncio.Transport | None = None
        self._reader: Any = None
        self._outgoing: list[bytes] = []
        self._waiting: deque[asyncio.Future[Any] | Reply] = deque()
        self._retires: Exception | None = None
        """Why it ends once all replies that are missing have come."""
        self.heard_at = self.asked_at = 0.0
        """When (monotonic) data last arrived, and when the wait for the reply that is due began."""

    @property
    def is_open(self) -> bool:
        """Return whether commands can be sent."""
        return self._transport is not None and not self._retires

    @property
    def id(self) -> int | None:
        """Return the CLIENT ID, with which another connection can unblock this one."""
        return self._raw.id

    @property
    def waiting(self) -> int:
        """Return how many replies are missing."""
        return len(self._waiting)

    @property
    def overdue(self) -> float:
        """Return for how long (s) nothing was heard while a reply is missing."""
        return time.monotonic() - max(self.asked_at, self.heard_at) if self._waiting else 0.0

    async def open(self) -> None:
        """Connect and log in. Raise redis-py's errors."""
        self.end(ConnectionError("the connection was closed"), told=False)
        self._reader = Reader(replyError=BaseParser.parse_error, notEnoughData=_INCOMPLETE)
        self._retires = None
        self.link = _Link(self)
        self._transport = await self._raw.take_over(self.link)
        self.heard_at = self.asked_at = time.monotonic()

    async def close(self) -> None:
        """Disconnect; whatever waits for a reply raises ``LostReply``."""
        self.end(ConnectionError("the connection was closed"), told=False)
        await self._raw.close()
        await self._raw.redis.aclose()

    def execute_command(self, *words: Word | Packed) -> "asyncio.Future[Any]":
        """Send a command; return what becomes its reply.

        Raise ``ConnectionError`` if nothing can be sent, and ``LostReply`` if the connection ends before the reply.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_open:
            self.send(pack([words]), reply)
        else:
            reply.set_exception(ConnectionError("not connected"))
        return reply

    def send(self, packed: bytes | list[bytes], *replies: "asyncio.Future[Any] | Reply") -> None:
        """Send commands, as RESP, while the connection ``is_open``; ``replies`` get theirs, or ``LostReply``.

        Large parts of ``packed`` are not copied into one.
        """
        idle = not self._waiting
        if idle:
            self.asked_at = time.monotonic()
        self._waiting.extend(replies)
        self._post(packed, at_once=idle)

    def cut_if_silent(self, longest: float) -> None:
        """End the connection if a reply has been missing for ``longest`` seconds."""
        if self.overdue > longest:
            self.end(ConnectionError(f"no reply for {longest:.0f} s"))

    def heard(self, data: bytes) -> None:
        """Resolve the replies in ``data``."""
        self.heard_at = time.monotonic()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                self._received(reply)
        except (ProtocolError, IndexError) as error:
            self.end(ConnectionError(f"what came is no reply: {error}"))

    def _received(self, reply: Any) -> None:
        waiting = self._waiting.popleft()
        if not waiting.cancelled():
            if isinstance(reply, Exception):
                waiting.set_exception(reply)
            else:
                waiting.set_result(reply)
            if fate(reply) is Fate.ELSEWHERE:
                self._retires = reply  # a primary that became a replica: connect anew
        if self._retires and not self._waiting:
            self.end(self._retires)

    def _post(self, packed: bytes | list[bytes], *, at_once: bool = False) -> None:
        parts = [packed] if isinstance(packed, bytes) else packed
        if not self._outgoing:
            if at_once and self._transport is not None:
                self._transport.writelines(parts)
                return
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing += parts
        if sum(map(len, parts)) >= MUCH:
            self._flush()

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.writelines(outgoing)

    def end(self, error: Exception, *, told: bool = True) -> None:
        """End the connection, and fail what waits."""
        if self._transport is None:
            return
        transport, self._transport, self.link = self._transport, None, None
        transport.abort()
        self._outgoing.clear()
        waiting, self._waiting = self._waiting, deque()
        for reply in waiting:
            if not reply.done():
                reply.set_exception(LostReply(str(error)))
        if told:
            self._lost(error)


class Pattern(bytes):
    """A glob-style pattern of channels, to listen to all of them."""


Listener = Callable[[bytes | None], None]
"""Called with each message; with None when messages may have been missed before."""


class Subscriber(Wire):
    """A connection that listens: each channel has listeners, who also hear when messages may have been missed."""

    def __init__(self, url: str, name: str, lost: Callable[[Exception], None]) -> None:
        super().__init__(url, name, lost)
        self._listeners: dict[bytes, list[Listener]] = {}
        self._unconfirmed: dict[bytes, list[asyncio.Future[None]]] = {}
        self._confirmed: set[bytes] = set()

    async def open(self) -> None:
        """Connect, and subscribe to all channels again."""
        await super().open()
        self._confirmed.clear()
        for kind in (bytes, Pattern):
            self._send("SUBSCRIBE", [each for each in self._listeners if type(each) is kind])

    def add(self, channel: bytes, listener: Listener) -> "asyncio.Future[None]":
        """Listen to ``channel``; the future ends once the server has confirmed it."""
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if channel in self._confirmed:
            confirmed.set_result(None)
            asyncio.get_running_loop().call_soon(listener, None)
        else:
            self._unconfirmed.setdefault(channel, []).append(confirmed)
        if channel not in self._listeners:
            self._send("SUBSCRIBE", [channel])
        self._listeners.setdefault(channel, []).append(listener)
        return confirmed

    def remove(self, channel: bytes, listener: Listener) -> None:
        """Listen no more; a listener that is unknown is ignored."""
        listeners = self._listeners.get(channel, [])
        if listener in listeners:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[channel]
                self._confirmed.discard(channel)
                self._send("UNSUBSCRIBE", [channel])

    def hears(self, channel: bytes) -> bool:
        """Return whether what is published on ``channel`` now comes here."""
        return self.is_open and channel in self._confirmed

    def listeners(self, channel: bytes) -> "tuple[Listener, ...]":
        """Return who listens to ``channel``."""
        return tuple(self._listeners.get(channel, ()))

    def ping(self) -> None:
        """Ask for a sign of life: see ``heard_at``."""
        self._send("PING", [])

    def cut_if_silent(self, longest: float) -> None:
        """End the connection if nothing was heard for ``longest`` seconds: ``ping`` more often."""
        if time.monotonic() - self.heard_at > longest:
            self.end(ConnectionError(f"no sign of life for {longest:.0f} s"))

    def _send(self, command: str, words: list[bytes]) -> None:
        if words and isinstance(words[0], Pattern):
            command = f"P{command}"
        if self.is_open:
            for first in range(0, len(words) or (command == "PING"), MAX_CHANNELS):
                self._post(pack([(command, *words[first : first + MAX_CHANNELS])]))

    def _received(self, reply: Any) -> None:
        if not isinstance(reply, list):
            if isinstance(reply, Exception):
                self.end(ConnectionError(str(reply)))
            return
        kind, channel = reply[0], reply[1]
        if kind in (b"message", b"pmessage"):
            for listener in self.listeners(channel):
                listener(reply[-1])
        elif kind in (b"subscribe", b"psubscribe") and channel in self._listeners:
            self._confirmed.add(channel)
            for confirmed in self._unconfirmed.pop(channel, ()):
                if not confirmed.done():
                    confirmed.set_result(None)
            for listener in self.listeners(channel):
                listener(None)
