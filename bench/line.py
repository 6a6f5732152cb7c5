"""A plain connection to a server, the least that a client can be: a figure shall show the service, not its user."""

import socket
from typing import Any, Final

from hiredis import Reader, pack_command

PIECE: Final = 1 << 20
"""Bytes read at a time."""


def packed(*words: bytes | str | int) -> bytes:
    """One command as the bytes that the server reads."""
    command: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub: one word
    return command


class Line:
    """Commands out in one write, replies in as they come."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = Reader()

    def exchange(self, commands: bytes, replies: int) -> list[Any]:
        """Send what ``packed`` made and wait for so many replies. Raises the first that is an error."""
        self._socket.sendall(commands)
        received: list[Any] = []
        while len(received) < replies:
            while len(received) < replies and (reply := self._reader.gets()) is not False:
                if isinstance(reply, Exception):
                    raise reply
                received.append(reply)
            if len(received) < replies:
                piece = self._socket.recv(PIECE)
                if not piece:
                    raise ConnectionError("the server has closed the connection")
                self._reader.feed(piece)
        return received
