"""A server with JSON documents: the module RedisJSON that ``PENSTOCK_REDISJSON`` names, or a small imitation.

The imitation passes commands on to a plain server, with JSON.GET as GET and JSON.SET of a whole document as SET. It
knows no paths, does not check documents and keeps their text as it is; the module writes it anew. TYPE says string.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Final

from penstock.core.raw_connection import pack
from penstock.testing.server import EmbeddedServer

MODULE: Final = os.environ.get("PENSTOCK_REDISJSON", "")
"""Path of rejson.so; a binary of Redis that loads it is ``PENSTOCK_SERVER``."""


@contextmanager
def json_server(directory: Path) -> Iterator[str]:
    """Yield the URL of a server with JSON documents."""
    if MODULE:
        with EmbeddedServer(directory=directory, loadmodule=MODULE) as server:
            yield server.url
        return
    with EmbeddedServer(directory=directory) as server, _Imitation(server.port) as imitation:
        threading.Thread(target=imitation.serve_forever, daemon=True).start()
        yield f"redis://127.0.0.1:{imitation.server_address[1]}"
        imitation.shutdown()


class _Imitation(ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = port


class _Handler(StreamRequestHandler):
    server: _Imitation

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.port)) as plain:
            replies = threading.Thread(target=self._pass_replies, args=(plain,), daemon=True)
            replies.start()
            try:
                while words := _command(self.rfile):
                    plain.sendall(pack([tuple(_translated(words))]))
            except ConnectionError:
                return

    def _pass_replies(self, plain: socket.socket) -> None:
        try:
            while data := plain.recv(65_536):
                self.connection.sendall(data)
        except OSError:
            return


def _command(stream: BufferedIOBase) -> list[bytes]:
    """Read the words of a command; none at the end of the connection."""
    head = stream.readline()
    words = []
    for _ in range(int(head[1:]) if head else 0):
        words.append(stream.read(int(stream.readline()[1:])))
        stream.readline()
    return words


def _translated(words: list[bytes]) -> list[bytes]:
    match words:
        case [b"JSON.GET", key]:
            return [b"GET", key]
        case [b"JSON.SET", key, b"$", document]:
            return [b"SET", key, document, b"KEEPTTL"]
    return [b"string" if word == b"ReJSON-RL" else word for word in words]
