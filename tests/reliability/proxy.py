"""Proxy between a replica and its server that a test can break at the worst moment."""

import socket
import threading
from types import TracebackType
from typing import Final, Self

from tests.support.harness import until

CHUNK: Final = 65_536


class Fault:
    """A fault for the first connection that sends a request with all ``words`` in it.

    With ``forward``, the server gets the request, but the replica does not get the reply. Without, the server gets
    nothing until ``late``. Either way, the replica gets nothing more over this connection until ``cut`` or ``over``.
    """

    def __init__(self, words: tuple[bytes, ...], *, forward: bool) -> None:
        self.words, self.forward = words, forward
        self.met, self.answered = threading.Event(), threading.Event()
        """``met``: set when the request has come (and with ``forward`` been sent). ``answered``: by the server."""
        self.connection: ProxyConnection | None = None

    def late(self) -> None:
        """Forward the requests held back."""
        assert self.connection is not None
        self.connection.send_kept()

    def over(self) -> None:
        """End the fault: forward the requests held back, and from now on everything in both directions."""
        assert self.connection is not None
        self.connection.end_fault()

    def cut(self, *, server_too: bool = True) -> None:
        """Close the connection; without ``server_too``, only the replica's end, so that the server does not notice."""
        assert self.connection is not None
        self.connection.cut(server_too=server_too)


class ProxyConnection:
    """A connection of the replica and its counterpart to the server."""

    def __init__(self, proxy: "Proxy", client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._fault: Fault | None = None
        self._kept = b""
        for pump in (self._forward_requests, self._forward_replies):
            threading.Thread(target=pump, daemon=True).start()

    def _forward_requests(self) -> None:
        while request := received(self._client):
            if self._proxy.canned_reply:
                send(self._client, self._proxy.canned_reply)
                continue
            if self._fault is None:
                self._fault = self._proxy.met_by(request)
                if self._fault:
                    self._fault.connection = self
            if self._fault is None or self._fault.forward:
                send(self._server, request)
            else:
                self._kept += request
            if self._fault:
                self._fault.met.set()
        if self._fault is None:
            self.cut()

    def _forward_replies(self) -> None:
        while reply := received(self._server):
            if self._fault:
                self._fault.answered.set()
            else:
                send(self._client, reply)
        self.cut()

    def cut(self, *, server_too: bool = True) -> None:
        for end in (self._client, self._server) if server_too else (self._client,):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed by the other side
                continue

    def end_fault(self) -> None:
        self._fault = None
        self.send_kept()

    def send_kept(self) -> None:
        send(self._server, self._kept)

    def close(self) -> None:
        self.cut()
        self._client.close()
        self._server.close()


class Proxy:
    """Forward connections to the server at ``port``; ``url`` is for the replica."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: list[ProxyConnection] = []
        self._fault: Fault | None = None
        self.canned_reply = b""
        """Reply to every request in place of the server's; empty for none."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def fault(self, *words: str, forward: bool) -> Fault:
        """Arm and return a fault for the next request with all ``words`` in it."""
        self._fault = Fault(tuple(word.encode() for word in words), forward=forward)
        return self._fault

    def met_by(self, request: bytes) -> Fault | None:
        fault = self._fault
        if b"DISCARD" in request:  # the check of permissions queues commands and executes none
            return None
        if fault is None or not all(word in request for word in fault.words):
            return None
        self._fault = None
        return fault

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # the server is down: fail as a direct connection would
                client.close()
            else:
                self._connections.append(self.connection(client, server))

    def connection(self, client: socket.socket, server: socket.socket) -> ProxyConnection:
        return ProxyConnection(self, client, server)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        until(lambda: not self._thread.is_alive())
        for connection in self._connections:
            connection.close()


def received(connection: socket.socket) -> bytes:
    """Return the next bytes, or b"" if the connection has ended or broken."""
    try:
        return connection.recv(CHUNK)
    except OSError:
        return b""


def send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:  # the other thread notices it, too
        return
