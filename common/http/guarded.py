"""uvicorn's protocol with what it lacks: limits of size, number and time for everything that a client sends."""

import asyncio
import re
from array import array
from contextlib import suppress
from fcntl import ioctl
from math import inf
from termios import TIOCOUTQ
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from common.http.admission import Admission
from common.http.answers import refusal
from common.http.rules import Refused, check_head, framing_of

LINGER_SECONDS: Final = 2.0
"""Seconds after the last answer in which more is read and dropped: if the socket closed at once while data comes, the
client might never read that answer."""
SPARE_SECONDS: Final = 1.0
"""Seconds that a stopping server spares for one more request of an idle connection, and for a client that has gone."""
MAX_FRAMING: Final = 16
"""Bytes of a chunked body with its framing for each byte of data, beyond as many as a head has: extensions of chunks
are read and dropped, and may be of any length."""


MAX_SIZE_LINE: Final = 64
SIZE: Final = re.compile(rb"[0-9A-Fa-f]+").match
"""The size of a chunk, at the begin of its line."""


class Guarded(HttpToolsProtocol):
    """One connection, admitted and watched by ``admission``; an ASGI application answers its requests.

    A request that breaks HTTP or a limit is refused once those before it are answered, and the connection ends.
    """

    def __init__(self, config: Config, state: ServerState, admission: Admission) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.admission, self.limits = admission, admission.limits
        self.address = ""
        self._due = self._stalled = inf
        """When the client is overdue: with what it sends, and with reading what it is sent."""
        self._unread = 0
        """Bytes that the client had not read when its time to read began."""
        self._in_head = self._in_body = self._ended = self._upgrades = False
        self._is_new = True
        self._head_bytes = self._headers_seen = self._body_bytes = 0
        self._raw = 0
        """Bytes of a head, or of a body with its framing, that has begun in an earlier piece of data."""
        self._held = 0
        """Bytes of the body that is being received."""
        self._body_since = 0.0
        self.version = ""
        self._hosts: list[bytes] = []
        self._framing = b""
        """The header that says that a body follows; empty without one."""
        self._of_chunk: int | None = None
        """Bytes that the data being read has of the chunk that has begun in it, and not ended."""
        self._tail = b""
        """The last bytes of what was read before: the size of a chunk may come in pieces."""
        self._repeats_head = False
        self._refusal: Refused | None = None
        """To be sent once the requests before it are answered."""

    @property
    def due(self) -> float:
        """Return when the client is overdue; a pause that we make ourselves is no fault of the client's."""
        if self._in_body and self.flow.read_paused:
            return self._stalled
        return min(self._due, self._stalled)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._due = self.loop.time() + self.limits.head_seconds
        if not self.admission.enter(self):
            self.refuse(Refused(429, "too many connections"))
        elif not self.address:  # the client has reset it already: nobody can say where it came from
            self._ended = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.admission.leave(self)
        self.release()
        self._due = self._stalled = inf
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self.timeout_keep_alive_task:
            self._unset_keepalive_if_required()
        was_in_head, body = self._in_head, self._body_since if self._in_body else None
        offered = self._feed(data)
        if offered is not None:
            self._ignore_upgrade(data[offered:])
        if self._in_head and not self._ended:
            self._raw = self._raw + len(data) if was_in_head else 0
            if self._raw > self.limits.head:
                self.refuse(Refused(431, "the head is too large"))
        if self._in_body and not self._ended:
            self._raw = self._raw + len(data) if self._body_since == body else 0
            if self._raw > self.limits.head + MAX_FRAMING * self._body_bytes:
                self.refuse(Refused(400, "the chunks have more framing than data"))
                return
            now = self.loop.time()
            least = self._body_since + self._body_bytes / self.limits.slowest
            self._due = min(now, least) + self.limits.stall_seconds

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read the body of a request for another protocol, which the parser leaves to that one; no more follows.

        Java's client, for example, offers HTTP/2 in each first request. The parser for the body begins with a head that
        says no more than how long the body is.
        """
        if not self._framing:
            self._ended = True
            return
        self.parser, self._repeats_head = HttpRequestParser(self), True
        self._feed(b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n%b\r\n\r\n" % self._framing)
        self._feed(rest)

    def _feed(self, data: bytes) -> int | None:
        """Parse ``data``, and refuse what breaks a rule; return where a request for another protocol ends, or None."""
        self._of_chunk, before, self._tail = None, self._tail, (self._tail + data[-MAX_SIZE_LINE:])[-MAX_SIZE_LINE:]
        try:
            self.parser.feed_data(data)
            if self._of_chunk is not None and self._in_body:
                self._check_size(before + data)
        except HttpParserUpgrade as upgrade:
            end: int = upgrade.args[0]
            return end
        except HttpParserError as error:
            cause = error.__context__
            self.refuse(cause if isinstance(cause, Refused) else Refused(400, f"not HTTP: {error}"))
        return None

    def _check_size(self, data: bytes) -> None:
        """Refuse a chunk that is larger than a body may be, before it has come: ``data`` ends with the begin of it."""
        end = len(data) - (self._of_chunk or 0)
        start = data.rfind(b"\n", 0, max(end - 1, 0))
        found = SIZE(data, start + 1, end) if start >= 0 else None
        if found and self._body_bytes - (self._of_chunk or 0) + int(found[0], 16) > self.limits.body:
            self.refuse(Refused(413, f"the body is longer than {self.limits.body} bytes"))

    @property
    def unread(self) -> int:
        """Return how many bytes of answers wait in this process until the client reads."""
        return self.transport.get_write_buffer_size()

    @property
    def is_idle(self) -> bool:
        """Return whether no request waits for its answer."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    # What the parser finds

    def on_message_begin(self) -> None:
        if self._repeats_head:
            return
        self._in_head, self._in_body = True, False
        if self.is_idle:
            self._due = self.loop.time() + self.limits.head_seconds
        self._head_bytes = self._headers_seen = self._body_bytes = self._raw = 0
        self._hosts.clear()
        self._framing = b""
        self.begin()

    def begin(self) -> None:
        """Forget the head of the request before."""
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._repeats_head:
            return
        self._head_bytes += len(url)
        if self._head_bytes > self.limits.target:
            raise Refused(414, "the target is too long")
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._repeats_head:
            return
        self._head_bytes += len(name) + len(value) + 4
        self._headers_seen += 1
        if self._headers_seen > self.limits.headers:
            raise Refused(431, "too many headers")
        if self._head_bytes > self.limits.head:
            raise Refused(431, "the head is too large")
        if not self._in_head:
            return  # a trailer must not pass for a header
        name, value = name.lower(), value.rstrip(b" \t")  # the parser strips what comes before a value only
        if name == b"host":
            self._hosts.append(value)
        elif name in (b"content-length", b"transfer-encoding"):
            self._framing = framing_of(name, value, self.limits)
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._repeats_head:
            self._repeats_head = False
            return
        self._upgrades = self.parser.should_upgrade()
        self.version = self.parser.get_http_version()
        check_head(self.parser.get_method(), self.url, self.version, self.headers, self._hosts)
        self.expect_100_continue = self.expect_100_continue and self.version == "1.1"
        self._in_head, self._in_body = False, True
        self._body_since = self.loop.time()
        self.accept()

    def accept(self) -> None:
        """Begin to serve the request whose head is complete."""
        self.server_state.default_headers = self.admission.default_headers
        super().on_headers_complete()
        if self._upgrades or self.admission.draining:
            self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        self._of_chunk = 0

    def on_chunk_complete(self) -> None:
        self._of_chunk = None

    def on_body(self, body: bytes) -> None:
        if self._of_chunk is not None:
            self._of_chunk += len(body)
        self._body_bytes += len(body)
        if self._body_bytes > self.limits.body:
            raise Refused(413, f"the body is longer than {self.limits.body} bytes")
        self._held += len(body)
        if not self.admission.hold(self.address, len(body)):
            raise Refused(503, "the bodies in hand are too large together")
        self.keep(body)

    def keep(self, body: bytes) -> None:
        """Take a part of the body."""
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._upgrades and self._framing and self.parser.should_upgrade():
            return  # its body follows, see _ignore_upgrade
        self._in_body, self._is_new = False, False
        self._due = inf
        self.complete()
        self.release()

    def complete(self) -> None:
        """Go on with a request that has come wholly."""
        super().on_message_complete()

    def release(self) -> None:
        """Note that the body that was being received is not in hand any more."""
        if self._held:
            self.admission.let_go(self.address, self._held)
            self._held = 0

    # What ends

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline:
            self.rest()

    def rest(self) -> None:
        """Wait for the next request; or send the refusal that had to wait for the answers before it."""
        if self._refusal:
            self._send_refusal(self._refusal)
        elif not self._in_body:
            limits = self.limits
            self._due = self.loop.time() + (limits.head_seconds if self._in_head else limits.idle_seconds)

    def overdue(self) -> None:
        """End the connection of a client that took too long: with 408 if it was sending a request."""
        now, is_receiving = self.loop.time(), self._in_head or self._in_body
        if self._stalled <= now:
            if not self._reads():
                self.transport.abort()
        elif self.is_idle and not is_receiving and self.transport.get_write_buffer_size():
            if self._stalled is inf:
                self._watch_reader()
            self._due = now + SPARE_SECONDS  # look again: the answer is on its way
        elif is_receiving and not self._ended and self._stalled is inf:
            self.refuse(Refused(408, "the request took too long"))
        else:
            self.transport.abort()

    def refuse(self, refused: Refused) -> None:
        """Answer with an error once what came before is answered, and end the connection."""
        self._ended = True
        self._due = inf
        self.admission.access.refused(refused.status)
        is_first = self.abandon()
        self.release()
        self._in_head = self._in_body = False
        if is_first:
            self._send_refusal(refused)
        else:
            self._refusal = refused

    def abandon(self) -> bool:
        """Give up the request that is being received; return whether no other waits for its answer."""
        if self._in_body and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()
            return False
        if not self._in_body or self.cycle is None:
            return self.is_idle
        if self.cycle.response_started:
            self.transport.close()
            return False
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        return True

    def _send_refusal(self, refused: Refused) -> None:
        self._refusal = None
        if self.transport.is_closing():
            return
        self.transport.write(refusal(refused.status, refused.reason, self.admission.date))
        self.linger()

    def linger(self) -> None:
        """Send the end of the connection, and drop what comes until the client ends it, too, for a bounded time."""
        self._ended = True
        self._due = self.loop.time() + (SPARE_SECONDS if self.admission.draining else LINGER_SECONDS)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled = inf

    def _watch_reader(self) -> None:
        """Give the client ``stall_seconds`` to go on reading."""
        self._unread = self._bytes_unread()
        self._stalled = self.loop.time() + self.limits.stall_seconds

    def _reads(self) -> bool:
        """Return whether the client has read enough since ``_watch_reader``, and call that again."""
        before = self._unread
        self._watch_reader()
        return before - self._unread >= self.limits.slowest * self.limits.stall_seconds

    def _bytes_unread(self) -> int:
        """Return how many bytes of answers the client's machine has not taken yet."""
        count = array("i", [0])
        with suppress(OSError, ValueError):  # it is closed
            ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, count)
        return self.transport.get_write_buffer_size() + count[0]

    def shutdown(self) -> None:
        """End the connection with the answer under way, or soon if there is none."""
        if not self.is_idle:
            self.cycle.keep_alive = False
        self.end_if_unused()

    def end_if_unused(self) -> None:
        """Close the connection soon unless a request is in hand.

        One may be on its way: a proxy that keeps connections could not send it to another server if this one closed.
        """
        if self._is_new or (self.is_idle and not self._in_head and not self._in_body):
            self._due = min(self._due, self.loop.time() + SPARE_SECONDS)
