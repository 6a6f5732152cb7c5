"""Listen for other outboxes; strangers are bounded in number, size and time, refused with a reason, and counted."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final, cast

from penstock.base.listening import bound
from penstock.core.tasks import begin
from penstock.outbox import forks
from penstock.outbox.frames import Kind, frame
from penstock.outbox.handshake import Refused, WireError
from penstock.outbox.hello import Identity, Limits, address_of, host_and_port
from penstock.outbox.peer import Peer
from penstock.outbox.security import Security

MAX_STRANGERS: Final = 64
"""Maximum number of connections that are not authenticated yet."""
MAX_STRANGERS_OF_A_HOST: Final = 32
MAX_PEERS: Final = 1000
"""Maximum number of authenticated connections."""
BACKLOG: Final = 128

OnPeer = Callable[[Peer], Awaitable[None]]
"""Runs as a task for each authenticated connection, which is closed when it returns or raises ``WireError``."""


class Listener:
    """A server for other outboxes; ``listen`` makes one."""

    def __init__(
        self, identity: Identity, security: Security, on_peer: OnPeer, limits: Limits,
        on_refused: Callable[[str, str, str], None] | None,
    ) -> None:  # fmt: skip
        self.identity = identity
        """With the first of ``addresses`` if its address was empty, with the system's choice if its port was 0."""
        self.addresses = list[str]()
        """Where it listens: host:port as in ``bind``, with the port that the system chose if that was 0."""
        self.counts = Counter[str]()
        """Connections by what became of them: ``accepted``, or why they were refused (``secret``, ``too slow`` ...)."""
        self.peers = set[Peer]()
        self._security, self._on_peer, self._limits, self._on_refused = security, on_peer, limits, on_refused
        self._sockets = list[socket.socket]()
        self._strangers = Counter[str]()
        self._accepting, self._serving = list[asyncio.Task[None]](), set[asyncio.Task[None]]()
        self._greeting = set[asyncio.Task[None]]()
        self._is_closing = False

    async def bind(self, addresses: Iterable[str]) -> None:
        loop = asyncio.get_running_loop()
        for address in addresses:
            host, port = host_and_port(address)
            self._security.require_allowed(host)
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for where in dict.fromkeys(str(each[4][0]) for each in found):
                self._sockets.append(_listening(where, port))
                forks.keep(self._sockets[-1])
                port = self._sockets[-1].getsockname()[1]  # that of all families if the system chose it
            self.addresses.append(address_of(host, port))
        advertised, _, chosen = self.identity.address.rpartition(":")
        if not advertised:
            self.identity = replace(self.identity, address=self.addresses[0])
        elif chosen == "0":
            port = self._sockets[0].getsockname()[1]
            self.identity = replace(self.identity, address=f"{advertised}:{port}")
        self._accepting = [begin(self._accept(each)) for each in self._sockets]

    def close_sockets(self) -> None:
        for each in self._sockets:
            each.close()

    async def close(self) -> None:
        """Stop listening, say bye to all peers and wait for their tasks."""
        self._is_closing = True
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        self.close_sockets()
        for task in self._greeting:
            task.cancel()
        for peer in set(self.peers):
            peer.close("the outbox stops")
        while self._serving:
            await asyncio.wait(set(self._serving))

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, where = await loop.sock_accept(listening)
            except OSError:  # e.g. no more file descriptors
                self.counts["not accepted"] += 1
                await asyncio.sleep(1)
                continue
            host = str(where[0])
            if self._strangers.total() >= MAX_STRANGERS or self._strangers[host] >= MAX_STRANGERS_OF_A_HOST:
                self._turn_away(connection, host)
                continue
            self._strangers[host] += 1
            task = asyncio.create_task(self._serve(connection, host))
            self._serving.add(task)
            self._greeting.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._greeting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a task of a peer failed", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(context)

    def _turn_away(self, connection: socket.socket, host: str) -> None:
        self._refused("too many", host, "too many connections are not authenticated yet")
        with connection, suppress(OSError):
            connection.setblocking(False)
            if self._security.server is None:
                connection.send(frame(Kind.BYE, "too many connections are not authenticated yet: try again"))

    def _refused(self, kind: str, host: str, reason: str) -> None:
        self.counts[kind] += 1
        if self._on_refused is not None:
            self._on_refused(kind, host, reason)

    async def _serve(self, connection: socket.socket, host: str) -> None:
        peer = Peer(self.identity, self._security, self._limits, dialled=None, receives=True)
        try:
            await self._greet(connection, peer)
        except (OSError, WireError) as error:
            kind = error.kind if isinstance(error, Refused) else "TLS" if isinstance(error, OSError) else "left"
            self._refused(kind, host, str(error))
            return
        finally:
            self._strangers[host] -= 1
            if not self._strangers[host]:
                del self._strangers[host]
        self._greeting.discard(cast("asyncio.Task[None]", asyncio.current_task()))
        if len(self.peers) >= MAX_PEERS:
            self._refused("too many", host, f"there are {MAX_PEERS:,} peers already")
            peer.close("too many connections")
            return
        self.counts["accepted"] += 1
        self.peers.add(peer)
        if self._is_closing:
            peer.close("the outbox stops")
        try:
            with suppress(WireError):
                await self._on_peer(peer)
        finally:
            self.peers.discard(peer)
            peer.close()

    async def _greet(self, connection: socket.socket, peer: Peer) -> None:
        """Raise ``OSError`` if TLS fails, ``Refused`` if the handshake does."""
        context = self._security.server
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: peer,
                connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._limits.handshake_seconds,
                ssl_shutdown_timeout=None if context is None else self._limits.handshake_seconds,
            )
            await peer.ready()
        except ssl.SSLError as error:
            raise Refused(f"TLS: {error.reason or error}", "TLS") from None
        except asyncio.CancelledError:
            peer.abort()
            raise


def _listening(host: str, port: int) -> socket.socket:
    try:
        made = bound(host, port)
        made.listen(BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {host}:{port}") from error
    made.setblocking(False)
    return made


async def listen(
    bind: str | Iterable[str],
    identity: Identity,
    security: Security,
    on_peer: OnPeer,
    *,
    limits: Limits | None = None,
    on_refused: Callable[[str, str, str], None] | None = None,
) -> Listener:
    """Listen at ``bind`` (host:port, or several).

    ``on_refused`` gets of each stranger as what it is counted, its host and the reason. Raise ``OSError`` if an address
    is taken, ``ValueError`` if one is none or ``security`` does not allow it.
    """
    listener = Listener(identity, security, on_peer, limits or Limits(), on_refused)
    try:
        await listener.bind([bind] if isinstance(bind, str) else bind)
    except BaseException:
        listener.close_sockets()
        raise
    return listener
