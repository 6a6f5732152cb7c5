"""A link that meets a fault at one command, or at its reply, in any way that a link can fail."""

import socket
import threading
from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum

from tests.reliability.proxy import Link, Proxy, received, send


class Kind(Enum):
    """What happens at the command: it, or its reply, does not get through, or not all of it.

    Cut and torn connections are closed then, at both ends; a swallowed one stays open, and says nothing any more.
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
class Blow:
    """A fault at the ``nth`` command that begins with ``word``, counted from 0 as they come over all connections.

    Which of two connections speaks first is by chance; what each says is not.
    """

    kind: Kind
    word: str
    nth: int


class Boundaries(Proxy):
    """Counts the commands of all its connections, and strikes one of them."""

    def __init__(self, port: int, blow: Blow | None = None) -> None:
        super().__init__(port)
        self._blow = blow
        self._met: Counter[str] = Counter()
        self._one_at_a_time = threading.Lock()
        self.commands: list[str] = []
        """The first word of every command that came."""
        self.struck = False

    def link(self, client: socket.socket, server: socket.socket) -> Link:
        return FramedLink(self, client, server)

    def came(self, command: bytes) -> Kind | None:
        """What happens to this one."""
        with self._one_at_a_time:
            word = command.split(b"\r\n", 3)[2].decode().upper()
            self.commands.append(word)
            self._met[word] += 1
            if self._blow is None or (word, self._met[word]) != (self._blow.word, self._blow.nth + 1):
                return None
            self.struck = True
            return self._blow.kind


class FramedLink(Link):
    """One connection, whose commands and replies go through whole and one by one."""

    def __init__(self, boundaries: Boundaries, client: socket.socket, server: socket.socket) -> None:
        self._boundaries = boundaries
        self._owed: deque[Kind | None] = deque()
        """What happens to the replies to come."""
        self._silent = False
        super().__init__(boundaries, client, server)

    def _ask(self) -> None:
        frames = Frames()
        while request := received(self._client):
            for command in frames.whole(request):
                if self._silent:
                    break
                kind = self._boundaries.came(command)
                if kind in AT_COMMAND:
                    self._strike(kind, self._server, command)
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
                    self._strike(kind, self._client, reply)
                    break
                send(self._client, reply)
        self.cut()

    def _strike(self, kind: Kind, end: socket.socket, frame: bytes) -> None:
        self._silent = True
        if kind in (Kind.TORN_COMMAND, Kind.TORN_REPLY):
            send(end, frame[: len(frame) // 2])
        if kind is Kind.CUT_AFTER:
            send(end, frame)
        if not kind.swallows:
            self.cut()


class Frames:
    """Splits what comes over a connection where a command or a reply of RESP2 ends."""

    def __init__(self) -> None:
        self._rest = b""

    def whole(self, more: bytes) -> list[bytes]:
        """Those that ``more`` completes."""
        self._rest += more
        found = []
        while end := _end_of(self._rest):
            found.append(self._rest[:end])
            self._rest = self._rest[end:]
        return found


def _end_of(data: bytes, begin: int = 0) -> int:
    """Where what begins at ``begin`` ends; 0 where some of it is missing."""
    end = data.find(b"\r\n", begin) + 2
    if end < 2:
        return 0
    kind, length = data[begin : begin + 1], data[begin + 1 : end - 2]
    if kind == b"$" and length != b"-1":
        end += int(length) + 2
        return end if end <= len(data) else 0
    assert kind in (b"+", b"-", b":", b"$", b"*"), data[begin : begin + 50]
    if kind == b"*":
        for _ in range(int(length)):
            end = _end_of(data, end)
            if not end:
                return 0
    return end
