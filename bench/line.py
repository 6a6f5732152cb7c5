"""Plain connection to a server, as cheap as a client can be: a figure must show the service, not its client."""

import socket
from typing import Any, Final

from hiredis import Reader, pack_command

PIECE: Final = 1 << 20
"""Most bytes read at a time."""


def packed(*words: bytes | str | int) -> bytes:
    """Return one command as the bytes that the server reads."""
    command: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub: one word
    return command


class Line:
    """Sends commands in one write, and reads replies as they come."""

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
