"""Whole requests handed straight to a function: no scope, no task, no cycle of ASGI in between."""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from httptools import parse_url
from uvicorn.config import Config
from uvicorn.server import ServerState

from common.http.admission import Admission
from common.http.answers import Header, head
from common.http.guarded import SPARE_SECONDS, Guarded
from common.http.rules import Refused, authority_of

LARGE: Final = 65_536
"""Bytes of a body from which it is not copied behind its head."""
SMALL: Final = 4_096
"""Bytes of a piece of a body up to which it is copied behind the one before it: an object of its own takes memory."""
AHEAD: Final = 8
"""Requests that are read while one before them is served. Who stops reading does not hear that the client has gone."""
MAX_AHEAD: Final = 256
"""Most of them, since one piece of data may hold thousands."""
WITHOUT_BODY: Final = frozenset({204, 304})
RESET: Final = 205
"""The status of an answer that must be empty, and say so: some clients read no body of it."""


class Exchange:
    """One request, and its answer: ``respond`` once, or ``begin``, ``send`` and ``end``."""

    __slots__ = (
        *("_connection", "_is_chunked", "_sent", "_since", "address", "body", "headers", "is_done", "is_gone"),
        *("_has_left", "_when_gone", "held", "keep_alive", "method", "path", "query", "status"),
    )

    def __init__(self, connection: "Direct", method: bytes, target: bytes, headers: list[Header]) -> None:
        self._connection, self._since = connection, connection.loop.time()
        self.method = method.decode()
        self.headers = headers
        """Names in lower case, in the order of the request."""
        path, _, query = target.partition(b"?")
        self.path, self.query = path.decode("ascii"), query.decode("ascii")
        """As they were sent, percent-encoded."""
        self.body = b""
        self.held = 0
        """Bytes of its body that count as in hand."""
        self.address = connection.address
        self.keep_alive = True
        self.is_gone = self.is_done = self._is_chunked = False
        self._when_gone: Callable[[], None] | None = None
        self._has_left = False
        self.status = self._sent = 0

    @property
    def is_draining(self) -> bool:
        """Return whether the server stops: end what would go on."""
        return self._connection.admission.draining

    def respond(self, status: int, headers: Iterable[Header], body: bytes = b"") -> None:
        """Answer; do nothing if the client has gone. ``headers`` must be safe to send and end to end."""
        if self.is_gone or self.is_done:
            return
        self.status = status
        if status == RESET:
            body = b""
        more = b"" if status in WITHOUT_BODY else b"content-length: %d\r\n" % len(body)
        given = [pair for pair in headers if pair[0] == b"content-length"]
        if given:
            headers = [pair for pair in headers if pair not in given]
        if self.method == "HEAD" or status in WITHOUT_BODY:
            if self.method == "HEAD" and not body and given:
                more = b"content-length: %b\r\n" % given[0][1]
            body = b""
        start = self._head(headers, more)
        self._sent = len(body)
        if len(body) > LARGE:
            self._connection.transport.writelines((start, body))
        else:
            self._connection.transport.write(start + body)
        self._finish()

    def begin(self, status: int, headers: Iterable[Header]) -> None:
        """Send the head of an answer whose body follows in pieces."""
        if self.is_gone or self.is_done:
            return
        self.status, self._is_chunked = status, self._connection.parser.get_http_version() == "1.1"
        self.keep_alive = self.keep_alive and self._is_chunked
        self._connection.transport.write(self._head(headers, b"transfer-encoding: chunked\r\n" * self._is_chunked))

    def send(self, piece: bytes) -> None:
        """Send a piece of the body after ``begin``."""
        if piece and not self.is_gone and not self.is_done:
            self._sent += len(piece)
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece)

    def end(self) -> None:
        """End the answer that ``begin`` began."""
        if not self.is_gone and not self.is_done:
            if self._is_chunked:
                self._connection.transport.write(b"0\r\n\r\n")
            self._finish()

    def when_gone(self, call: Callable[[], None]) -> None:
        """Call ``call`` once if the client closes, or has closed, its end of the connection before the answer.

        ``respond`` may still work then.
        """
        if self._has_left:
            call()
        else:
            self._when_gone = call

    def leave(self) -> None:
        """Note that the client does not wait any more."""
        self._has_left = True
        call, self._when_gone = self._when_gone, None
        if call:
            call()

    def _head(self, headers: Iterable[Header], more: bytes) -> bytes:
        admission = self._connection.admission
        if admission.draining:
            self.keep_alive = False
        return head(self.status, headers, admission.date, more if self.keep_alive else more + b"connection: close\r\n")

    def _finish(self) -> None:
        self.is_done, self._when_gone = True, None
        connection = self._connection
        seconds = connection.loop.time() - self._since
        connection.admission.access.answered(self.method, self.status, len(self.body), self._sent, seconds)
        connection.answered(self)


Handler = Callable[[Exchange], None]


class Direct(Guarded):
    """A connection whose requests go to ``handler`` one after the other, each with its whole body."""

    def __init__(self, config: Config, state: ServerState, admission: Admission, handler: Handler) -> None:
        super().__init__(config, state, admission)
        self.handler = handler
        self._receiving: Exchange | None = None
        self._body: list[bytes | bytearray] = []
        self._waiting: list[Exchange] = []  # an empty deque would take 600 bytes of each connection
        self._serving: Exchange | None = None
        self._serves_next = self._is_half_closed = False

    @property
    def is_idle(self) -> bool:
        return self._serving is None and not self._waiting

    def begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def accept(self) -> None:
        if len(self._waiting) >= MAX_AHEAD:
            raise Refused(429, "too many requests at once")
        exchange = Exchange(self, self.parser.get_method(), self._target(), self.headers)
        exchange.keep_alive = self.version == "1.1" and not self._upgrades and self.parser.should_keep_alive()
        self._receiving = exchange
        self._body = []
        if self.expect_100_continue and self._framing and self.is_idle:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _target(self) -> bytes:
        """Return path and query; a target in absolute form must name the host that ``Host`` names."""
        if self.url[:1] == b"/" or self.url == b"*":
            return self.url
        url = parse_url(self.url)
        if url.schema.lower() not in (b"http", b"https"):
            raise Refused(400, "a target with a scheme: expected http or https")
        usual = 443 if url.schema.lower() == b"https" else 80
        if self._hosts and authority_of(self._hosts[0], usual) != (url.host.lower(), url.port or usual):
            raise Refused(400, "the target names another host than Host")
        return (url.path or b"/") + (b"?%b" % url.query if url.query else b"")

    def keep(self, body: bytes) -> None:
        if self._body and len(body) < SMALL:
            if isinstance(self._body[-1], bytes):
                self._body.append(bytearray())
            self._body[-1] += body
        else:
            self._body.append(body)

    def complete(self) -> None:
        exchange, self._receiving = self._receiving, None
        if exchange is None:
            return
        if self._body:
            exchange.body, self._body = b"".join(self._body), []
            exchange.held, self._held = self._held, 0
        self._waiting.append(exchange)
        many = len(self._waiting)
        if (many > 1 or exchange.held) and (many > AHEAD or sum(each.held for each in self._waiting) > LARGE):
            self.flow.pause_reading()
        self._serve()

    def _serve(self) -> None:
        """Hand over what waits, one after the other; a handler may answer before it returns.

        Nothing is handed over while the client does not read the answers before it.
        """
        if self._serves_next:
            return
        self._serves_next = True
        while self._waiting and self._serving is None and not (self.flow.write_paused or self.transport.is_closing()):
            self._serving = self._waiting.pop(0)
            self.handler(self._serving)
        self._serves_next = False

    def answered(self, exchange: Exchange) -> None:
        """Go on after the answer of ``exchange``."""
        self._serving = None
        if exchange.held:
            self._release(exchange)
        if not exchange.keep_alive or self.admission.draining:
            while self._waiting:
                self._release(self._waiting.pop(0))
            self._refusal = None
            if self._is_half_closed:
                self._due = self.loop.time() + SPARE_SECONDS
                self.transport.close()
            else:
                self.linger()
            return
        if self._waiting:
            self._serve()
        else:
            self.flow.resume_reading()
            self.rest()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._serve()

    def abandon(self) -> bool:
        self._receiving, self._body = None, []
        return self.is_idle

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for answers to what has come: a client may close only its half of it.

        More often it has gone. So those who work on its requests hear of it.
        """
        if self.is_idle:
            return False
        if self._in_head or self._in_body:  # half a request behind those in hand
            self.abandon()
            self.release()
            self._in_head = self._in_body = False
            self._due = inf
        self._is_half_closed = True
        in_hand = self._in_hand()
        in_hand[-1].keep_alive = False
        for exchange in in_hand:
            exchange.leave()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        for exchange in self._in_hand():
            exchange.is_gone = True
            exchange.leave()
            self._release(exchange)
        self._waiting.clear()
        super().connection_lost(exc)

    def _release(self, exchange: Exchange) -> None:
        self.admission.let_go(self.address, exchange.held)
        exchange.held = 0

    def _in_hand(self) -> list[Exchange]:
        return [*([self._serving] if self._serving else []), *self._waiting]

    def shutdown(self) -> None:
        if self._is_half_closed:
            self._due = self.loop.time() + SPARE_SECONDS
        self.end_if_unused()


def direct(handler: Handler) -> Callable[[Config, ServerState, Admission], Direct]:
    """Return what makes the connections of a server whose requests go to ``handler``."""
    return lambda config, state, admission: Direct(config, state, admission, handler)


async def nothing(scope: object, receive: object, send: object) -> None:
    """Take the place of the ASGI application that ``Direct`` does not have."""
