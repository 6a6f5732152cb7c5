"""HTTP server for Prometheus and for probes (/metrics, /live, /ready), in a thread of its own."""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, make_wsgi_app
from redis.exceptions import RedisError

from penstock.base.errors import PenstockError, TooMany, WrongType
from penstock.base.listening import bound
from penstock.core.link import describe
from services.monitor.collector import StateCollector
from services.monitor.state import NamespaceState

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

T = TypeVar("T")
SCRAPE_SECONDS: Final = 5.0
"""Longest time to read the state of all namespaces: half of Prometheus's default timeout."""
LIVE_SECONDS: Final = 2.0
"""Seconds within which the event loop of a live process answers."""
SLICES: Final = 20
"""Slices that such a time is waited in: while the whole process stands still, only one of them passes."""
CLIENT_SECONDS: Final = 10.0
"""Seconds that a client may be silent within a request."""
MAX_CONNECTIONS: Final = 64
"""Maximum number of connections at a time. A new one takes the place of the oldest that has sent no whole request."""
READ_ERRORS: Final = (RedisError, WrongType, TooMany, OSError, CancelledError)
"""Errors of a read while Redis or the event loop does not answer, or the service stops."""


class CannotListen(PenstockError):
    """The port is taken, or this process may not listen on it."""


class Exporter:
    """Serves from ``__aenter__`` to ``__aexit__`` on ``port``; 0 chooses a free one.

    ``read`` and ``why_not_ready`` run in the event loop that entered; the latter returns None if the service works.
    """

    def __init__(
        self,
        port: int,
        host: str,
        namespaces: Sequence[str],
        read: Callable[[Sequence[str]], Coroutine[Any, Any, list[NamespaceState]]],
        why_not_ready: Callable[[], str | None],
    ) -> None:
        self.port = port
        self._host, self._namespaces, self._read, self._why_not_ready = host, namespaces, read, why_not_ready
        registry = CollectorRegistry()
        for collector in (StateCollector(namespaces, self._read_states), PROCESS_COLLECTOR, PLATFORM_COLLECTOR):
            registry.register(collector)
        self._metrics = make_wsgi_app(registry)

    async def __aenter__(self) -> Self:
        """Raise ``CannotListen`` if the port is taken or forbidden."""
        self._loop = asyncio.get_running_loop()
        try:
            self._server = _Server((self._host, self.port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotListen(f"port {self.port} is taken: set metricsPort") from None
            reason = f"cannot listen on {self._host} port {self.port}: {error.strerror}"
            raise CannotListen(f"{reason}: set metricsHost or metricsPort") from None
        self.port = self._server.server_port
        self._server.set_app(self._answer)
        Thread(target=self._server.serve_forever, args=(0.1,), name="exporter", daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()

    def _answer(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                answer: Iterable[bytes] = self._metrics(environ, start_response)
                return answer
            case "/live":
                problem = self._problem(asyncio.sleep(0), LIVE_SECONDS)
            case "/ready":
                problem = self._problem(self._readiness(), SCRAPE_SECONDS)
            case _:
                return _text_response(start_response, "404 Not Found", "there are /metrics, /live and /ready")
        return _text_response(start_response, "503 Service Unavailable" if problem else "200 OK", problem or "ok")

    def _read_states(self) -> list[NamespaceState] | None:
        try:
            return self._in_loop(self._read(self._namespaces), SCRAPE_SECONDS)
        except READ_ERRORS:
            return None

    async def _readiness(self) -> str | None:
        if problem := self._why_not_ready():
            return problem
        await self._read(self._namespaces)
        return None

    def _problem(self, question: Coroutine[Any, Any, str | None], seconds: float) -> str | None:
        """Return the result of ``question``, or why it has none."""
        try:
            return self._in_loop(question, seconds)
        except TimeoutError:
            return f"no answer within {seconds:g} s"
        except READ_ERRORS as error:
            return f"cannot read from Redis: {describe(error)}"

    def _in_loop(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return the result; raise ``TimeoutError`` after ``seconds``, of which any standstill counts as one slice."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            for _ in range(SLICES - 1):
                with suppress(TimeoutError):
                    return future.result(seconds / SLICES)
            return future.result(seconds / SLICES)
        finally:
            future.cancel()


def _text_response(start_response: "StartResponse", status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode(errors="backslashreplace")]


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def parse_request(self) -> bool:
        assert isinstance(self.server, _Server)
        return super().parse_request() and self.server.may_answer(self.connection)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a scrape is normal operation."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._open: dict[socket.socket, bool] = {}
        """The connections, the oldest first, and whether one has to end."""
        self._asking: dict[socket.socket, None] = {}
        """Those that have sent no whole request, the oldest first."""
        self._changes = Condition()
        super().__init__(address, handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound(*address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, once fewer than ``MAX_CONNECTIONS`` are open."""
        with self._changes:
            if len(self._open) >= MAX_CONNECTIONS:
                oldest = next(iter(self._asking or self._open))
                self._open[oldest] = True
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._changes.wait_for(lambda: len(self._open) < MAX_CONNECTIONS)
            self._open[request], self._asking[request] = False, None
        super().process_request(request, client_address)

    def may_answer(self, request: socket.socket) -> bool:
        """Note that a connection has sent a request; return False if it has to end, which has cut the request short."""
        with self._changes:
            self._asking.pop(request, None)
            return not self._open.get(request, False)

    def close_request(self, request: Any) -> None:
        super().close_request(request)
        with self._changes:
            self._asking.pop(request, None)
            self._open.pop(request, None)
            self._changes.notify()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
