"""A proxy that injects a fault at one command or at its reply, in every way that a connection can fail."""

import socket
import threading
from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum

from penstock.testing.chaos.frames import Frames, words_of
from tests.reliability.proxy import Proxy, ProxyConnection, received, send


class Kind(Enum):
    """The kind of fault at a command: it, or its reply, is not passed on, or not all of it.

    A cut or torn connection is then closed at both ends; a swallowed one stays open and passes nothing any more.
    """

    CUT_BEFORE = "cut before the command"
    TORN_COMMAND = "cut in the middle of the command"
    SWALLOWED_COMMAND = "the command is swallowed"
    CUT_BEFORE_REPLY = "cut before the reply"
    TORN_REPLY = "cut in the middle of the reply"
    SWALLOWED_REPLY = "the reply is swallowed"
    CUT_AFTER = "cut after the reply"

    @property
    def swallows(self) -> bool:
        return self in (Kind.SWALLOWED_COMMAND, Kind.SWALLOWED_REPLY)


AT_COMMAND = (Kind.CUT_BEFORE, Kind.TORN_COMMAND, Kind.SWALLOWED_COMMAND)


@dataclass(frozen=True)
class CommandFault:
    """A fault at the ``nth`` command that begins with ``word``, counted from 0 as they come over all connections.

    The order between connections is random; the commands of each are not.
    """

    kind: Kind
    word: str
    nth: int


class CommandProxy(Proxy):
    """Count the commands of all connections and inject a fault at one of them."""

    def __init__(self, port: int, fault: CommandFault | None = None) -> None:
        super().__init__(port)
        self._command_fault = fault
        self._met: Counter[str] = Counter()
        self._one_at_a_time = threading.Lock()
        self.commands: list[str] = []
        """The first word of every command that came."""
        self.met = False

    def connection(self, client: socket.socket, server: socket.socket) -> ProxyConnection:
        return FramedConnection(self, client, server)

    def came(self, command: bytes) -> Kind | None:
        """Return what happens to this command, None for nothing."""
        with self._one_at_a_time:
            word = words_of(command)[0].decode().upper()
            nth = self._met[word]
            self.commands.append(word)
            self._met[word] += 1
            fault = self._command_fault
            if fault is None or (word, nth) != (fault.word, fault.nth):
                return None
            self.met = True
            return fault.kind


class FramedConnection(ProxyConnection):
    """One connection, whose commands and replies are passed on whole, one by one."""

    def __init__(self, proxy: CommandProxy, client: socket.socket, server: socket.socket) -> None:
        self._commands = proxy
        self._owed: deque[Kind | None] = deque()
        """The kind of fault for each reply to come, None for most."""
        self._silent = False
        super().__init__(proxy, client, server)

    def _ask(self) -> None:
        frames = Frames()
        while request := received(self._client):
            for command in frames.whole(request):
                if self._silent:
                    break
                kind = self._commands.came(command)
                if kind in AT_COMMAND:
                    self._inject(kind, self._server, command)
                    break
                self._owed.append(kind)
                send(self._server, command)
        self.cut()

    def _answer(self) -> None:
        frames = Frames()
        while answer := received(self._server):
            for reply in frames.whole(answer):
                if self._silent:
                    break
                kind = self._owed.popleft()
                if kind:
                    self._inject(kind, self._client, reply)
                    break
                send(self._client, reply)
        self.cut()

    def _inject(self, kind: Kind, end: socket.socket, frame: bytes) -> None:
        self._silent = True
        if kind in (Kind.TORN_COMMAND, Kind.TORN_REPLY):
            send(end, frame[: len(frame) // 2])
        if kind is Kind.CUT_AFTER:
            send(end, frame)
        if not kind.swallows:
            self.cut()
