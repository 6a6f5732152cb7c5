"""Ports of this machine for servers and services that are started here."""

import socket
from contextlib import ExitStack, suppress
from random import SystemRandom
from typing import Final

BUS_OFFSET: Final = 10_000
"""The nodes of a cluster talk to each other on their port plus this number."""


def free_port(*, bus: bool = False) -> int:
    """Return a port of 127.0.0.1 on which nothing listens and which no ``EmbeddedServer`` claims at the moment."""
    with claimed_port(bus=bus) as claim:
        return int(claim.getsockname()[1])


def claimed_port(*, bus: bool = False) -> socket.socket:
    """Choose a port on which nothing listens and claim it; with ``bus``, the cluster bus port must be free, too.

    The claim is a datagram socket bound to the same number, which does not disturb the server. While it is open, no
    other process that chooses its port here gets this one: neither before the server has bound it, nor while the server
    is down between ``stop`` and ``start``.

    Only ports below those that Linux gives to outgoing connections (32768 and up) are chosen. While the server is down,
    an outgoing connection could get its port, or a client that keeps trying to reach it could connect to itself.
    """
    while True:
        port = SystemRandom().randrange(10_000, 32_768 - BUS_OFFSET * bus)
        with ExitStack() as opened, suppress(OSError):
            claim = opened.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            claim.bind(("127.0.0.1", port))
            for wanted in (port, port + BUS_OFFSET)[: 1 + bus]:
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", wanted))
            opened.pop_all()
            return claim
