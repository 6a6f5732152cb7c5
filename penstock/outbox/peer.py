"""One authenticated connection to another outbox: messages, acknowledgements, and pings both ways."""

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from typing import Final, cast

from penstock.outbox import forks
from penstock.outbox.frames import (
    FRAME_BYTES,
    HEADS_BYTES,
    MAX_REASON,
    Acknowledged,
    Kind,
    MessageFrame,
    Reader,
    Violation,
    WrongVersion,
    acknowledged_in,
    acknowledgements,
    frame,
    frame_of,
    messages_in,
    number_in,
    reason_in,
    weight_of,
)
from penstock.outbox.handshake import Disconnected, Handshake, Refused, RefusedByThem
from penstock.outbox.hello import Identity, Limits
from penstock.outbox.security import Security, certificate_names
from penstock.outbox.window import Incoming, Outgoing

CLOSE_SECONDS: Final = 5.0
BUFFERED_BYTES: Final = 1024 * 1024
"""Bytes in the socket's buffer above which ``send`` waits."""
HEAD_BYTES: Final = 64
"""Maximum number of bytes of a message's head without its keys."""


class Peer(asyncio.Protocol):
    """A connection to another outbox; ``connect`` and ``listen`` authenticate it first.

    Sender: ``send`` and, in another task, ``acknowledged``. Receiver: ``receive``, store, ``acknowledge``. A message
    that was sent and not acknowledged when the connection ends may have arrived or not: send it again on the next.
    """

    address: str = ""
    """What was dialled, or the other side's ``advertise``.

    TLS proves its host; a shared secret only that the other side is one of us."""
    store: bytes = b""
    """The id of the other side's store."""
    names: frozenset[str] = frozenset()
    """The names in the other side's certificate; empty without TLS."""
    limits: Limits
    """What may be sent: what the other side accepts, and no more than our own limits."""
    round_trip: float | None = None
    """Seconds of the last ping; None before the first has been answered."""
    host: str = ""
    """Where the other side's packets come from."""

    def __init__(
        self, identity: Identity, security: Security, limits: Limits, *, dialled: str | None, receives: bool
    ) -> None:
        """``dialled`` is the address for a connector, None for a listener; messages are refused unless ``receives``."""
        self._identity, self._security, self._own = identity, security, limits
        self._dialled, self._receives = dialled, receives
        self.limits = limits
        self._loop = asyncio.get_running_loop()
        self._reader, self._outgoing, self._incoming = Reader(), Outgoing(), Incoming(limits)
        self._received = list[MessageFrame]()
        self._transport: asyncio.Transport | None = None
        self._handshake: Handshake | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Disconnected | None = None
        self._is_paused = False
        self._ready, self._gone = self._loop.create_future(), self._loop.create_future()
        self._ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._changed, self._progress, self._arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._last_read, self._pinged_at, self._ping = 0.0, 0.0, 0
        self._unanswered: int | None = None

    def __repr__(self) -> str:
        return f"<Peer {self.address or self.host}>"

    def fileno(self) -> int:
        """Return the number of the connection's file; -1 without one."""
        found = self._transport and self._transport.get_extra_info("socket")
        return found.fileno() if found else -1

    @property
    def unacknowledged(self) -> tuple[int, int]:
        """Messages and bytes that were sent and not acknowledged."""
        return len(self._outgoing.window), self._outgoing.window.bytes

    @property
    def is_open(self) -> bool:
        return self._error is None

    async def send(self, messages: Iterable[MessageFrame]) -> None:
        """Write ``messages``; wait while the other side's window or the socket's buffer is full.

        Raise ``Disconnected``; ``ValueError`` at a message that is larger than ``limits.max_message_bytes``, or whose
        seq is not greater than the one before: those before it are sent. One task at a time may send.
        """
        batch, heads, size = list[MessageFrame](), 0, 0
        try:
            for each in messages:
                weight = weight_of(each, self.limits.max_message_bytes)
                if each.seq <= self._outgoing.seq:
                    raise ValueError(f"seq {each.seq} comes after {self._outgoing.seq}")
                head = weight - len(each.data) + HEAD_BYTES
                if batch and (size + weight > FRAME_BYTES or heads + head > HEADS_BYTES or not self._has_room(weight)):
                    self._write_messages(batch)
                    batch, heads, size = [], 0, 0
                while not self._has_room(weight):
                    self._require_open()
                    self._changed.clear()
                    await self._changed.wait()
                batch.append(each)
                heads, size = heads + head, size + weight
                self._outgoing.add(each, weight)
        finally:
            if batch:
                self._write_messages(batch)
        self._require_open()

    async def acknowledged(self) -> Acknowledged:
        """Wait for progress and return it; what came meanwhile is joined. Raise ``Disconnected`` after the last."""
        while (found := self._outgoing.progress()) is None:
            self._require_open()
            self._progress.clear()
            await self._progress.wait()
        self._changed.set()
        return found

    async def receive(self) -> list[MessageFrame]:
        """Return all messages that have come since the last call; wait for one at least.

        Raise ``Disconnected`` once the connection has ended and all were returned. The window bounds how many come:
        acknowledge them only once they are on disk.
        """
        while not self._received:
            self._require_open()
            self._arrived.clear()
            await self._arrived.wait()
        found, self._received = self._received, []
        return found

    def acknowledge(self, upto: int, refused: Mapping[int, str] | None = None) -> None:
        """Say that all messages up to ``upto`` are on disk, but for those ``refused``: seq and reason.

        Raise ``ValueError`` if ``upto`` did not come, or was acknowledged. Do nothing if the connection has ended.
        """
        self._incoming.settle(upto, refused or {})
        self._write_due()

    def close(self, reason: str = "") -> None:
        """Say bye with ``reason`` and close once all that was written is sent, or after 5 s. Again does nothing."""
        self._end(Disconnected(reason or "closed by us"), reason)

    def abort(self) -> None:
        """Close at once, without a word."""
        self._end(Disconnected("closed by us"), None)
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> str:
        """Wait until the connection has ended and return the reason."""
        await asyncio.shield(self._gone)
        return str(self._error)

    async def ready(self) -> None:
        """Wait for the end of the handshake. Raise ``Disconnected``, ``Refused``."""
        await asyncio.shield(self._ready)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._error is not None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=BUFFERED_BYTES)
        forks.keep(self)
        peername = transport.get_extra_info("peername")
        self.host = str(peername[0]) if isinstance(peername, tuple) else ""
        self.names = certificate_names(transport.get_extra_info("peercert") or {})
        self._timer = self._loop.call_later(self._own.handshake_seconds, self._be_impatient)
        self._handshake = Handshake(self._identity, self._security, self._own, self._dialled, self.names)
        self._write(self._handshake.begin())

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._changed.set()
        self._write_due()

    def data_received(self, data: bytes) -> None:
        self._last_read = self._loop.time()
        try:
            for kind, body in self._reader.feed(data) if self._error is None else ():
                if self._handshake is not None:
                    self._greet(self._handshake, kind, body)
                else:
                    self._take(kind, body)
                if self._error is not None:
                    return
        except Violation as error:
            kind_of = "version" if isinstance(error, WrongVersion) else "protocol"
            self._end(Refused(str(error), kind_of), str(error))
        except Refused as error:
            self._end(error, None if isinstance(error, RefusedByThem) else str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f"the connection was lost: {exc}" if exc else "the other side closed the connection"
        if self._handshake is None:
            self._end(Disconnected(reason), None)
        else:
            is_tls = isinstance(exc, ssl.SSLError)
            self._end(Refused(f"{reason} (during the handshake)", "TLS" if is_tls else "left"), None)
        if self._timer is not None:
            self._timer.cancel()
        if not self._gone.done():
            self._gone.set_result(None)

    def _has_room(self, weight: int) -> bool:
        return not self._is_paused and self._error is None and self._outgoing.has_room(weight, self.limits)

    def _write_messages(self, batch: list[MessageFrame]) -> None:
        self._outgoing.written = batch[-1].seq
        self._write(frame_of(batch))

    def _write_due(self) -> None:
        """Write acknowledgements and a pong, unless the other side does not read: they are joined meanwhile."""
        if self._is_paused:
            return
        if due := self._incoming.due():
            self._write(acknowledgements(*due))
        if self._unanswered is not None:
            self._write(frame(Kind.PONG, self._unanswered))
            self._unanswered = None

    def _write(self, data: bytes) -> None:
        if self._transport is not None and self._error is None and data:
            self._transport.write(data)

    def _greet(self, handshake: Handshake, kind: int, body: bytes) -> None:
        self._write(handshake.take(kind, body))
        if not handshake.is_done:
            return
        self._handshake = None
        self.address = self._dialled or handshake.theirs.identity.address
        self.store = handshake.theirs.identity.store
        self.limits = self._own.least(handshake.theirs.limits)
        self._reader.largest = self._own.largest_body
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._own.ping_seconds, self._tick)
        self._ready.set_result(None)

    def _take(self, kind: int, body: bytes) -> None:
        if kind == Kind.MESSAGES and self._receives:
            messages, weights = messages_in(body)
            self._incoming.take(messages, weights)
            self._received += messages
            self._arrived.set()
        elif kind == Kind.ACKNOWLEDGED:
            self._outgoing.settle(acknowledged_in(body))
            self._progress.set()
            self._changed.set()
        elif kind == Kind.PING:
            self._unanswered = number_in(body)
            self._write_due()
        elif kind == Kind.PONG:
            if number_in(body) == self._ping:
                self.round_trip = self._loop.time() - self._pinged_at
        elif kind == Kind.BYE:
            self._end(Disconnected(f"the other side says: {reason_in(body) or 'bye'}"), None)
        else:
            raise Violation("a frame came that has no place here")

    def _tick(self) -> None:
        now = self._loop.time()
        if now - self._last_read > self._own.silence_seconds:
            self._end(Disconnected(f"nothing came for {now - self._last_read:.0f} s"), "nothing came for too long")
            return
        if not self._is_paused:
            self._ping, self._pinged_at = self._ping + 1, now
            self._write(frame(Kind.PING, self._ping))
        self._timer = self._loop.call_later(self._own.ping_seconds, self._tick)

    def _be_impatient(self) -> None:
        reason = "the handshake took too long"
        self._end(Refused(reason, "too slow"), reason)

    def _end(self, error: Disconnected, bye: str | None) -> None:
        """End the connection because of ``error``; say ``bye`` unless it is None. A second call does nothing."""
        if self._error is not None:
            return
        self._error = error
        if not self._ready.done():
            self._ready.set_exception(error)
        for event in (self._changed, self._progress, self._arrived):
            event.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            if bye is not None:
                self._transport.write(frame(Kind.BYE, bye[:MAX_REASON]))
            self._transport.close()
            self._timer = self._loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def _require_open(self) -> None:
        if self._error is not None:
            raise self._error
