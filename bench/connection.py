"""Minimal Redis connection, as cheap as possible, so that a figure shows the service and not its client."""

import socket
from typing import Any, Final

from hiredis import Reader, pack_command

CHUNK_BYTES: Final = 1 << 20
"""Maximum bytes per read."""


def packed(*words: bytes | str | int) -> bytes:
    """Return one command in the Redis protocol."""
    command: bytes = pack_command(words)  # type: ignore[arg-type]  # the stub declares one word
    return command


class Connection:
    """A connection that sends commands in one write and reads their replies."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = Reader()

    def exchange(self, commands: bytes, replies: int) -> list[Any]:
        """Send ``commands`` (see ``packed``) and wait for ``replies`` replies. Raise the first that is an error."""
        self._socket.sendall(commands)
        received: list[Any] = []
        while len(received) < replies:
            while len(received) < replies and (reply := self._reader.gets()) is not False:
                if isinstance(reply, Exception):
                    raise reply
                received.append(reply)
            if len(received) < replies:
                chunk = self._socket.recv(CHUNK_BYTES)
                if not chunk:
                    raise ConnectionError("the server has closed the connection")
                self._reader.feed(chunk)
        return received
