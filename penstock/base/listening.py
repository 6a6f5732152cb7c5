"""Sockets that listen: ``::`` is all addresses of both families, everywhere."""

import errno
import socket
from typing import Final

ALL: Final = "::"
"""All addresses of this machine, of IPv6 and of IPv4."""
NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


def bound(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a TCP socket bound to ``host`` and ``port``, 0 for one that the system chooses. It does not listen yet.

    With ``shared`` other processes may bind to the same port. Where the machine has no IPv6, ``::`` is all of IPv4.
    Raise ``OSError``.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    try:
        return _bound(family, address, both=host == ALL, shared=shared)
    except OSError as error:
        if host != ALL or error.errno not in NO_IPV6:
            raise
        return _bound(socket.AF_INET, ("0.0.0.0", port), both=False, shared=shared)


def _bound(family: int, address: tuple[object, ...], *, both: bool, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made
